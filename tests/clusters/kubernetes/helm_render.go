// Renders one Helm template as `helm template` does, with Go's templates and Helm's library of functions (sprig):
// helm_render TEMPLATE VALUES.json RELEASE. There is no Helm in Debian; its functions that are missing in sprig are
// defined here. Values are read as Helm reads them: numbers are floats.
package main

import (
	"encoding/json"
	"os"
	"text/template"

	"github.com/Masterminds/sprig"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	functions := sprig.TxtFuncMap()
	functions["lookup"] = func(string, string, string, string) map[string]interface{} { return nil }
	source, err := os.ReadFile(os.Args[1])
	check(err)
	text, err := os.ReadFile(os.Args[2])
	check(err)
	var values map[string]interface{}
	check(json.Unmarshal(text, &values))
	parsed, err := template.New("job").Funcs(functions).Option("missingkey=error").Parse(string(source))
	check(err)
	release := map[string]interface{}{"Name": os.Args[3], "Namespace": "default"}
	check(parsed.Execute(os.Stdout, map[string]interface{}{"Values": values, "Release": release}))
}
