"""The testbed's DNS: names of pods in headless Services. Run as kube_dns.py ADDRESS URL TOKEN_FILE.

It answers POD.SERVICE.NAMESPACE.svc.cluster.local from the Endpoints that the API server has, asked again and again.
While the API server is away the last answers stay, as with CoreDNS.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
import urllib.request
from typing import Any

from dnslib import QTYPE, RCODE, RR, A, DNSRecord
from dnslib.server import BaseResolver, DNSServer

DOMAIN, API = "cluster.local", "10.96.0.1"
"""The second is the address of the Service of the API server, the only one in the testbed that has an address."""
_POLL_S = 0.5
_TTL_S = 1


class Endpoints(BaseResolver):
    def __init__(self) -> None:
        self.addresses: dict[str, str] = {f"kubernetes.default.svc.{DOMAIN}": API}

    def resolve(self, request: DNSRecord, handler: Any) -> DNSRecord:
        reply = request.reply()
        name = str(request.q.qname).rstrip(".").lower()
        if name not in self.addresses:
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(self.addresses[name]), ttl=_TTL_S))
        return reply

    def read(self, found: dict[str, Any]) -> None:
        addresses = {f"kubernetes.default.svc.{DOMAIN}": API}
        for item in found["items"]:
            service, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
            for subset in item.get("subsets") or []:
                for each in [*(subset.get("addresses") or []), *(subset.get("notReadyAddresses") or [])]:
                    if "hostname" in each:
                        addresses[f"{each['hostname']}.{service}.{namespace}.svc.{DOMAIN}"] = each["ip"]
        self.addresses = addresses


def main(address: str, url: str, token_file: str) -> None:
    endpoints = Endpoints()
    DNSServer(endpoints, address=address, port=53, logger=_Silence()).start_thread()
    with open(token_file, encoding="utf-8") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}"}
    context = ssl._create_unverified_context()
    while True:
        try:
            request = urllib.request.Request(f"{url}/api/v1/endpoints", headers=headers)
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                endpoints.read(json.load(answer))
        except OSError:
            pass  # the API server is away; the answers stay
        threading.Event().wait(_POLL_S)


class _Silence:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


if __name__ == "__main__":
    main(*sys.argv[1:])
