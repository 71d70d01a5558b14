() => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const over = (colours) => { pen.clearRect(0, 0, 1, 1); for (const each of colours) { pen.fillStyle = each; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
  const backgrounds = (element) => { const found = []; for (let each = element; each; each = each.parentElement) found.unshift(getComputedStyle(each).backgroundColor); return found; };
  const bad = []; let count = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest(".skip")) continue;
    const style = getComputedStyle(element), under = backgrounds(element);
    const found = ratio(over(under), over([...under, style.color])), needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    count++;
    if (found < needed) bad.push(`${element.className || element.tagName} "${element.textContent.slice(0, 30)}": ${found.toFixed(2)}`);
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  for (const letter of Object.keys(page.map.nodes.states)) {
    count++;
    const found = ratio(over([css(letter)]), over([css("ink")]));
    if (found < 4.5) bad.push(`rank in state ${letter}: ${found.toFixed(2)}`);
    if (ratio(over([css(letter)]), over([css("raised")])) < 3) bad.push(`cell of state ${letter} against its box`);
  }
  return { bad, count };
}
