"""The public items of crates, one a line, from rustdoc's JSON: python3 scripts/check/public_api.py [--write] FOLDER JSON..

Compares with FOLDER/CRATE.txt and shows what differs; with --write it writes these files. scripts/check/public-api calls it.
"""

import difflib
import json
import pathlib
import sys


class Printer:
    def __init__(self, crate):
        self.index = crate["index"]
        self.lines = set()

    def item(self, number):
        return self.index.get(str(number))

    # Types.

    def type(self, kind):
        if kind is None:
            return "()"
        (name, inner), = kind.items() if isinstance(kind, dict) else ((kind, None),)
        return getattr(self, "type_" + name)(inner)

    def type_resolved_path(self, path):
        # Paths are written as the source has them; the last part is what a reader knows.
        return path["path"].rsplit("::", 1)[-1] + self.arguments(path["args"])

    def type_generic(self, name):
        return name

    type_primitive = type_generic

    def type_infer(self, _):
        return "_"

    def type_tuple(self, types):
        return "(" + ", ".join(map(self.type, types)) + ("," if len(types) == 1 else "") + ")"

    def type_slice(self, inner):
        return f"[{self.type(inner)}]"

    def type_array(self, inner):
        return f"[{self.type(inner['type'])}; {inner['len']}]"

    def type_borrowed_ref(self, inner):
        lifetime = f"{inner['lifetime']} " if inner["lifetime"] else ""
        return f"&{lifetime}{'mut ' if inner['is_mutable'] else ''}{self.type(inner['type'])}"

    def type_raw_pointer(self, inner):
        return f"*{'mut' if inner['is_mutable'] else 'const'} {self.type(inner['type'])}"

    def type_impl_trait(self, bounds):
        return "impl " + self.bounds(bounds)

    def type_dyn_trait(self, inner):
        traits = [self.type_resolved_path(bound["trait"]) for bound in inner["traits"]]
        return "dyn " + " + ".join(traits + [inner["lifetime"]] * bool(inner["lifetime"]))

    def type_function_pointer(self, inner):
        return "fn" + self.signature(inner["sig"], names=False)

    def type_qualified_path(self, inner):
        trait = inner["trait"] and self.type_resolved_path(inner["trait"])
        own = self.type(inner["self_type"])
        return (f"<{own} as {trait}>" if trait else own) + f"::{inner['name']}" + self.arguments(inner.get("args"))

    def type_pat(self, inner):
        return self.type(inner["type"])

    def arguments(self, arguments):
        if not arguments:
            return ""
        if "parenthesized" in arguments:
            inner = arguments["parenthesized"]
            output = f" -> {self.type(inner['output'])}" if inner["output"] else ""
            return "(" + ", ".join(map(self.type, inner["inputs"])) + ")" + output
        if "angle_bracketed" not in arguments:
            return "(..)"
        inner = arguments["angle_bracketed"]
        texts = [self.argument(argument) for argument in inner["args"]]
        for constraint in inner["constraints"]:
            binding = constraint["binding"]
            if "equality" in binding:
                texts.append(f"{constraint['name']} = {self.term(binding['equality'])}")
            else:
                texts.append(f"{constraint['name']}: {self.bounds(binding['constraint'])}")
        return f"<{', '.join(texts)}>" if texts else ""

    def argument(self, argument):
        if argument == "infer":
            return "_"
        (name, inner), = argument.items()
        return {"lifetime": lambda: inner, "type": lambda: self.type(inner), "const": lambda: inner["expr"]}.get(name, lambda: "_")()

    def term(self, term):
        return self.type(term["type"]) if "type" in term else term["constant"]["expr"]

    def bounds(self, bounds):
        texts = []
        for bound in bounds:
            (name, inner), = bound.items()
            if name == "trait_bound":
                mark = "?" if inner["modifier"] == "maybe" else ""
                texts.append(mark + self.type_resolved_path(inner["trait"]))
            elif name == "outlives":
                texts.append(inner)
            else:
                texts.append("use<..>")
        return " + ".join(texts)

    def generics(self, generics):
        parameters, where = [], []
        for parameter in generics["params"]:
            (name, kind), = parameter["kind"].items()
            if name == "lifetime":
                parameters.append(parameter["name"])
            elif name == "const":
                parameters.append(f"const {parameter['name']}: {self.type(kind['type'])}")
            elif not kind["is_synthetic"]:
                bounds = self.bounds(kind["bounds"])
                parameters.append(parameter["name"] + (f": {bounds}" if bounds else ""))
        for predicate in generics["where_predicates"]:
            (name, inner), = predicate.items()
            if name == "bound_predicate":
                where.append(f"{self.type(inner['type'])}: {self.bounds(inner['bounds'])}")
            elif name == "lifetime_predicate":
                where.append(f"{inner['lifetime']}: {' + '.join(inner['outlives'])}")
        return (f"<{', '.join(parameters)}>" if parameters else "", f" where {', '.join(where)}" if where else "")

    def signature(self, signature, names=True):
        inputs = [f"{name}: {self.type(kind)}" if names else self.type(kind) for name, kind in signature["inputs"]]
        output = f" -> {self.type(signature['output'])}" if signature["output"] else ""
        return f"({', '.join(inputs)}){output}"

    # Items.

    def add(self, path, line):
        self.lines.add(f"{path}: {line}")

    def module(self, number, path):
        for child in self.item(number)["inner"]["module"]["items"]:
            self.visit(child, path)

    def visit(self, number, path, name=None):
        item = self.item(number)
        if item is None or item["visibility"] not in ("public", "default"):
            return
        (kind, inner), = item["inner"].items()
        if kind == "use":
            target = self.item(inner["id"]) if inner["id"] is not None else None
            if target is None:
                self.add(f"{path}::{inner['name']}", f"use {inner['source']}")
            elif inner["is_glob"]:
                self.module(inner["id"], path)
            else:
                self.visit(inner["id"], path, inner["name"])
            return
        path = f"{path}::{name or item['name']}"
        mark = "#[non_exhaustive] " if any("non_exhaustive" in json.dumps(attribute) for attribute in item["attrs"]) else ""
        visit = getattr(self, "visit_" + kind, None)
        if visit:
            visit(path, item, inner, mark)
        else:
            self.add(path, f"{mark}{kind}")

    def visit_module(self, path, item, inner, mark):
        self.add(path, "mod")
        self.module(item["id"], path)

    def visit_function(self, path, item, inner, mark):
        parameters, where = self.generics(inner["generics"])
        header = inner["header"]
        words = [word for word, is_so in (("const", header["is_const"]), ("async", header["is_async"]), ("unsafe", header["is_unsafe"])) if is_so]
        self.add(path, " ".join(words + ["fn"]) + parameters + self.signature(inner["sig"]) + where)

    def visit_struct(self, path, item, inner, mark):
        parameters, where = self.generics(inner["generics"])
        kind = inner["kind"]
        hidden = ""
        if isinstance(kind, dict) and "plain" in kind:
            hidden = " { .. }" if kind["plain"]["has_stripped_fields"] else ""
            for field in kind["plain"]["fields"]:
                self.visit(field, path)
        elif isinstance(kind, dict):
            fields = [self.item(field) if field is not None else None for field in kind["tuple"]]
            hidden = "(" + ", ".join(self.type(field["inner"]["struct_field"]) if field else "_" for field in fields) + ")"
        self.add(path, f"{mark}struct{parameters}{hidden}{where}")
        self.impls(path, inner["impls"])

    def visit_struct_field(self, path, item, inner, mark):
        self.add(path, self.type(inner))

    def visit_enum(self, path, item, inner, mark):
        parameters, where = self.generics(inner["generics"])
        self.add(path, f"{mark}enum{parameters}{where}")
        for variant in inner["variants"]:
            self.visit(variant, path)
        self.impls(path, inner["impls"])

    def visit_variant(self, path, item, inner, mark):
        kind = inner["kind"]
        text = ""
        if isinstance(kind, dict) and "tuple" in kind:
            fields = [self.item(field) for field in kind["tuple"] if field is not None]
            text = "(" + ", ".join(self.type(field["inner"]["struct_field"]) for field in fields) + ")"
        elif isinstance(kind, dict):
            fields = [self.item(field) for field in kind["struct"]["fields"]]
            text = " { " + ", ".join(f"{field['name']}: {self.type(field['inner']['struct_field'])}" for field in fields) + " }"
        self.add(path, f"{mark}variant{text}")

    def visit_trait(self, path, item, inner, mark):
        parameters, where = self.generics(inner["generics"])
        bounds = self.bounds(inner["bounds"])
        self.add(path, f"trait{parameters}{': ' + bounds if bounds else ''}{where}")
        for child in inner["items"]:
            self.visit(child, path)

    def visit_assoc_type(self, path, item, inner, mark):
        bounds = self.bounds(inner["bounds"])
        self.add(path, "type" + (f": {bounds}" if bounds else "") + (f" = {self.type(inner['type'])}" if inner["type"] else ""))

    def visit_assoc_const(self, path, item, inner, mark):
        self.add(path, f"const {self.type(inner['type'])}")

    def visit_type_alias(self, path, item, inner, mark):
        self.add(path, f"type = {self.type(inner['type'])}")

    def visit_constant(self, path, item, inner, mark):
        self.add(path, f"const {self.type(inner['type'])}")

    def visit_static(self, path, item, inner, mark):
        self.add(path, f"static {self.type(inner['type'])}")

    def impls(self, path, impls):
        for number in impls:
            item = self.item(number)
            if item is None:
                continue
            inner = item["inner"]["impl"]
            if inner["is_synthetic"] or inner["blanket_impl"]:
                continue
            if inner["trait"] and inner["trait"]["path"].endswith("StructuralPartialEq"):
                continue
            if inner["trait"]:
                parameters, where = self.generics(inner["generics"])
                trait = self.type_resolved_path(inner["trait"])
                self.add(path, f"impl{parameters} {trait} for {self.type(inner['for'])}{where}")
            else:
                for child in inner["items"]:
                    self.visit(child, path)


def main():
    arguments = sys.argv[1:]
    write = arguments[:1] == ["--write"]
    folder, *files = arguments[write:]
    differs = False
    for file in files:
        crate = json.loads(pathlib.Path(file).read_text())
        printer = Printer(crate)
        name = pathlib.Path(file).stem
        printer.module(crate["root"], name)
        lines = [line + "\n" for line in sorted(printer.lines)]
        place = pathlib.Path(folder) / f"{name.replace('_', '-')}.txt"
        if write:
            place.write_text("".join(lines))
            continue
        known = place.read_text().splitlines(keepends=True) if place.exists() else []
        difference = list(difflib.unified_diff(known, lines, str(place), "this tree", n=0))
        sys.stdout.writelines(difference)
        differs |= bool(difference)
    sys.exit(1 if differs else 0)


main()
