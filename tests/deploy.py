"""What tests/deploy checks that no tool knows: the dashboard by Grafana's library, and references between files.

    python tests/deploy.py dashboard      checks the dashboard and prints its expressions as rules for promtool
    python tests/deploy.py chart KUSTOMIZE CHART  compares what kustomize and Helm make of the same nodes
    python tests/deploy.py values CHART   checks that every value of tests/deploy_values.yaml is in a chart
    python tests/deploy.py consistency    checks the rest: alerts and runbook, manifests, the configurations that documents
                                           show, the links of all Markdown files, and what maps.py checks
"""

import itertools
import json
import re
import sys
import tomllib
from pathlib import Path

import jsonschema
import ruamel.yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

sys.dont_write_bytecode = True
import maps

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
DRAIN = 20  # the default of drain_seconds
faults = []


def expect(condition, fault):
    if not condition:
        faults.append(fault)


def read(path):
    return list(ruamel.yaml.YAML(typ="safe").load_all((DEPLOY / path).read_text()))


def objects(value):
    """Every object in a JSON value."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield value
    for child in children:
        yield from objects(child)


def lost(written, kept, path="$"):
    """The places of what is not kept: a key that Grafana does not know, or a value that it reads as another."""
    if isinstance(written, dict):
        for key, value in written.items():
            if isinstance(kept, dict) and key in kept:
                yield from lost(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        for index, (one, other) in enumerate(zip(written, kept)):
            yield from lost(one, other, f"{path}[{index}]")
    elif written != kept:
        yield path


def check_dashboard():
    board = json.loads((DEPLOY / "grafana/formgate.json").read_text())
    register_default_plugins()
    for path in lost(board, json.loads(JSONEncoder().encode(Dashboard.from_json(board)))):
        expect(False, f"formgate.json: Grafana does not know {path}")
    panels = board["panels"]
    expect(len({panel["id"] for panel in panels}) == len(panels), "formgate.json: two panels share an id")
    anchors = anchors_of(DEPLOY / "runbook.md")
    for panel in (panel for panel in panels if panel["type"] != "row"):
        title, description = panel["title"], panel.get("description", "")
        sentences = re.findall(r"[^.]+[.](?= |$)", description)
        expect(len(sentences) >= 2 or len(description) >= 60, f"formgate.json: {title} does not say what it shows, and what is normal")
        expect(description.endswith("."), f"formgate.json: the description of {title} is no sentence")
        for alert in re.findall(r"Formgate\w+", description):
            expect(alert.lower() in anchors, f"formgate.json: {title} names {alert}, which the runbook has not")
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                expect(other == panel["title"] and x < 24, f"formgate.json: {panel['title']} lies over {other}")
    variables = {variable["name"] for variable in board["templating"]["list"]}
    rules = []
    for query in (value for value in objects(board) if "expr" in value):
        expect(query["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, f"formgate.json: not the datasource variable: {query['expr']}")
        expression = query["expr"].replace("$__rate_interval", "5m")
        unknown = set(re.findall(r"\$(\w+)", expression)) - variables
        expect(not unknown, f"formgate.json: no variable {unknown} in {query['expr']}")
        rules.append({"record": f"panel:{len(rules)}", "expr": expression})
    expect(len(rules) > 40, "formgate.json: expressions were not found")
    print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))


def check_alerts():
    anchors = anchors_of(DEPLOY / "runbook.md")
    fires, silent = set(), set()
    for test in read("prometheus/alerts_test.yml")[0]["tests"]:
        for case in test.get("promql_expr_test", []):
            for name in re.findall(r'alertname="(\w+)"', case["expr"]):
                (fires if case["exp_samples"] else silent).add(name)
    rules = [rule for group in read("prometheus/alerts.yml")[0]["groups"] for rule in group["rules"]]
    expect(rules, "alerts.yml: no rules")
    for rule in rules:
        name, annotations = rule["alert"], rule["annotations"]
        expect(rule["labels"].get("severity") in ("page", "warn"), f"{name}: its severity is neither page nor warn")
        expect(set(annotations) == {"summary", "description", "action", "runbook_url"}, f"{name}: needs exactly summary, description, action and runbook_url")
        page, _, anchor = annotations.get("runbook_url", "").partition("#")
        expect(page == "deploy/runbook.md" and anchor in anchors, f"{name}: the runbook has no #{anchor}")
        expect(name in fires and name in silent, f"{name}: alerts_test.yml needs a case in which it fires, and one in which it does not")


def check_kubernetes():
    manifests = {path.name: read(path.relative_to(DEPLOY)) for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    kustomization = manifests.pop("kustomization.yaml")[0]
    apart = {"migrate.yaml", "servicemonitor.yaml"}
    expect(set(kustomization["resources"]) == set(manifests) - apart, "kustomization.yaml: resources and files differ")
    for name, documents in manifests.items():
        for document in documents:
            expect("namespace" not in document["metadata"], f"{name}: the namespace is the operator's to choose")
    deployment = manifests["deployment.yaml"][0]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    pod = deployment["template"]["spec"]
    container = pod["containers"][0]
    ports = {port["name"] for port in container["ports"]}
    services = manifests["service.yaml"]
    selectors = [service["spec"]["selector"] for service in services]
    selectors += [deployment["selector"]["matchLabels"]]
    selectors += [spread["labelSelector"]["matchLabels"] for spread in pod["topologySpreadConstraints"]]
    selectors += [manifests["poddisruptionbudget.yaml"][0]["spec"]["selector"]["matchLabels"]]
    selectors += [manifests["networkpolicy.yaml"][0]["spec"]["podSelector"]["matchLabels"]]
    for selector in selectors:
        expect(selector.items() <= labels.items(), f"kubernetes: {selector} selects no pod")
    used = {port["targetPort"] for service in services for port in service["spec"]["ports"]}
    used |= {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    expect(used <= ports, f"kubernetes: no port {used - ports}")
    monitor = manifests["servicemonitor.yaml"][0]["spec"]
    found = [s for s in services if monitor["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
    expect(len(found) == 1, "servicemonitor.yaml: selects not just the one service of the metrics")
    expect(found and monitor["endpoints"][0]["port"] == found[0]["spec"]["ports"][0]["name"], "servicemonitor.yaml: port")
    expect(found and found[0]["metadata"]["labels"][monitor["jobLabel"]] == "formgate", "servicemonitor.yaml: job")
    grace = pod["terminationGracePeriodSeconds"] - container["lifecycle"]["preStop"]["sleep"]["seconds"]
    expect(grace > DRAIN, "deployment.yaml: killed before drain_seconds have passed")
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    configuration = manifests["configmap.yaml"][0]["data"]["tenants.toml"]
    for file in re.findall(r'^(?:certificate|private_key) = "(.+)"$', configuration, re.MULTILINE):
        expect(str(Path(file).parent) in mounted, f"configmap.yaml: {file} is mounted nowhere")


def rendered(file):
    """The objects of a file by kind and name, with numbers as Kubernetes reads them: 0440 is octal."""
    found = {}
    for text in re.split(r"^---\n", Path(file).read_text(), flags=re.MULTILINE):
        # One reader for each, since a reader forgets the version after the first document.
        reader = ruamel.yaml.YAML(typ="safe", pure=True)
        reader.version = (1, 1)
        document = reader.load(text)
        if document:
            found[f"{document['kind']} {document['metadata']['name']}"] = document
    return found


def check_chart(kustomize, chart):
    """Objects are the same but for the labels and the hooks of Helm."""
    wanted, found = rendered(kustomize), rendered(chart)
    expect(len(wanted) > 8, "kubernetes: kustomize printed few objects")
    for name in wanted.keys() ^ found.keys():
        expect(False, f"{name}: only in {'kubernetes' if name in wanted else 'helm'}")
    for name in wanted.keys() & found.keys():
        metadata = found[name]["metadata"]
        labels = {"app.kubernetes.io/managed-by", "helm.sh/chart"}
        expect(labels <= metadata["labels"].keys(), f"helm: {name} lacks a label")
        metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key not in labels}
        metadata["annotations"] = {key: value for key, value in metadata.get("annotations", {}).items() if not key.startswith("helm.sh/hook")}
        if not metadata["annotations"]:
            del metadata["annotations"]
        for place in {*lost(wanted[name], found[name]), *lost(found[name], wanted[name])}:
            expect(False, f"{name}: kubernetes and helm differ at {place}")


def check_values(chart):
    """Each value that was set is somewhere in the chart."""
    text = Path(chart).read_text()

    def leaves(value):
        if isinstance(value, (dict, list)):
            for child in value.values() if isinstance(value, dict) else value:
                yield from leaves(child)
        elif not isinstance(value, bool):
            yield from str(value).split("\n")

    known = ruamel.yaml.YAML(typ="safe").load((DEPLOY / "helm/values.yaml").read_text())
    values = ruamel.yaml.YAML(typ="safe").load((ROOT / "tests/deploy_values.yaml").read_text())
    expect(known.keys() == values.keys(), f"deploy_values.yaml: differs by {known.keys() ^ values.keys()}")
    for value in leaves(values):
        expect(value in text, f"helm: the value {value} is nowhere")


def check_stops():
    unit = (DEPLOY / "systemd/formgate.service").read_text()
    expect(int(re.search(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)[1]) > DRAIN, "formgate.service: TimeoutStopSec")
    grace = read("compose.yaml")[0]["services"]["formgate"]["stop_grace_period"]
    expect(int(grace.removesuffix("s")) > DRAIN, "compose.yaml: stop_grace_period")


def check_configurations():
    """The schema accepts the example, also with its comments, and what documents show; and it finds faults of every kind."""
    schema = json.loads((DEPLOY / "tenants.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    example = (ROOT / "tenants.example.toml").read_text()

    def found(text):
        errors = jsonschema.Draft7Validator(schema).iter_errors(tomllib.loads(text))
        return [f"{error.json_path}: {error.message[:200]}" for error in errors]

    shown = re.sub(r"^# ([a-z_]+ = )", r"\1", example, flags=re.MULTILINE)
    texts = {"tenants.example.toml": example, "tenants.example.toml with its comments": shown}
    for page in [ROOT / "README.md", *DEPLOY.glob("*.md")]:
        for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)):
            # A part of a table has no required keys; two lines of `include` are of two nodes.
            if block.startswith(("[gateway]\n", "[[tenant]]")) and "listen" in block.split("\n[gateway.")[0]:
                texts[f"{page.name}, block {number}"] = block
    expect(len(texts) > 3, "configurations: none were found in documents")
    for name, text in texts.items():
        for fault in found(text):
            expect(False, f"{name}: the schema says {fault}")
    for wrong, place in {
        ('listen = ["0.0.0.0:8443"]', 'listn = ["0.0.0.0:8443"]'): "$.gateway",
        ('listen = ["0.0.0.0:8443"]', "listen = []"): "$.gateway.listen",
        ('listen = ["0.0.0.0:8443"]', 'listen = [{ address = "[::]:1", tls = 1 }]'): "$.gateway.listen[0]",
        ("[gateway.databases]", "[gateway.databases]\nwait_ms = 0"): "$.gateway.databases.wait_ms",
        ("[gateway.webhooks]", '[gateway.webhooks]\ntimeout_seconds = "15"'): "$.gateway.webhooks.timeout_seconds",
        ("[gateway.webhooks]", "[gateway.webhooks]\nallow_targets = [7]"): "$.gateway.webhooks.allow_targets[0]",
        ("[gateway.administration]", '[gateway.administration]\nlanguage = "fr"'): "$.gateway.administration.language",
        ("[gateway.administration]", "[gateway.administration]\noidc = {}"): "$.gateway.administration.oidc",
        ('slug = "acme"', ""): "$.tenant[0]",
        ('slug = "acme"', 'slug = "acme"\ncolour = "red"'): "$.tenant[0]",
        ('[tenant.tls."forms.acme.org"]', '[tenant.tls."forms.acme.org"]\npassword = "a"'): "$.tenant[0].tls['forms.acme.org']",
    }.items():
        text = example.replace(*wrong, 1)
        expect(text != example and any(fault.startswith(place) for fault in found(text)), f"the schema accepts {wrong[1]}")


def without_blocks(markdown):
    """The text without code blocks, in which `#` is a comment and `](` is no link."""
    return re.sub(r"^ *```.*?^ *```", "", markdown, flags=re.DOTALL | re.MULTILINE)


def anchors_of(page):
    """The anchors that GitHub gives to headings: lower case, without punctuation, repeated ones numbered."""
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", without_blocks(page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
        numbered = (f"{slug}-{number}" for number in itertools.count(1))
        anchors.add(next(name for name in itertools.chain([slug], numbered) if name not in anchors))
    return anchors


def check_links():
    """Every relative link of every Markdown file leads to a file of the repository, and its anchor to a heading."""
    pages = [path for path in ROOT.rglob("*.md") if not {"target", ".git", "node_modules"} & set(path.relative_to(ROOT).parts)]
    expect(len(pages) > 5, "links: pages were not found")
    for page in pages:
        text, name = re.sub(r"`[^`\n]*`", "", without_blocks(page.read_text())), page.relative_to(ROOT)
        links = re.findall(r"\]\(\s*<?([^)>\s]+)[^)]*\)", text) + re.findall(r"^\[[^]]+\]:\s*(\S+)", text, re.MULTILINE)
        links += re.findall(r"\b(?:href|src)=\"([^\"]+)\"", text)
        for link in links:
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.is_relative_to(ROOT) or not target.exists():
                expect(False, f"{name}: there is no {path}")
            elif anchor and target.suffix == ".md":
                expect(anchor in anchors_of(target), f"{name}: there is no heading #{anchor} in {target.relative_to(ROOT)}")


if sys.argv[1] == "dashboard":
    check_dashboard()
elif sys.argv[1] == "chart":
    check_chart(*sys.argv[2:])
elif sys.argv[1] == "values":
    check_values(sys.argv[2])
else:
    check_alerts()
    check_kubernetes()
    check_stops()
    check_configurations()
    check_links()
    faults += maps.check()
if faults:
    sys.exit("\n".join(faults))
