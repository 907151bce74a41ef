"""The manifests for kustomize stay right when a folder of the user's changes them."""

from __future__ import annotations

import yaml

from deploy.chart import MANIFESTS

FOLDER = MANIFESTS.parent


def test_a_prefix_that_renames_a_policy_changes_its_name_in_the_binding() -> None:
    """kustomize does so only with a nameReference, and a binding without its policy binds nothing."""
    told = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    names = [
        it for file in told["configurations"] for it in yaml.safe_load((FOLDER / file).read_text())["nameReference"]
    ]
    follows = {(it["kind"], field["kind"], field["path"]) for it in names for field in it["fieldSpecs"]}
    bindings = [it for it in yaml.safe_load_all(MANIFESTS.read_text()) if it["kind"].endswith("PolicyBinding")]
    assert bindings
    for binding in bindings:
        assert (binding["kind"].removesuffix("Binding"), binding["kind"], "spec/policyName") in follows
