"""Deploys, lists and deletes a VM with the client that openapi-python-client makes from the OpenAPI document."""

import os
import ssl

from berth import AuthenticatedClient
from berth.api.v_ms import delete_vms_by_name, get_vms, post_vms
from berth.models import PostVmsBody

NAME = "generated-python"
NAMESPACE = os.environ["NAMESPACE"]

client = AuthenticatedClient(
    base_url=os.environ["URL"],
    token=os.environ["TOKEN"],
    verify_ssl=ssl.create_default_context(cafile=os.environ["AUTHORITY"]),
    timeout=None,
)
body = PostVmsBody(name=NAME, image=os.environ["IMAGE"], cpu=1)
deployed = post_vms.sync(NAMESPACE, client=client, body=body)
assert deployed.name == NAME, deployed
names = [vm.name for vm in get_vms.sync(NAMESPACE, client=client).items]
assert NAME in names, names
deleted = delete_vms_by_name.sync_detailed(NAMESPACE, NAME, client=client)
assert deleted.status_code == 200, deleted
missing = delete_vms_by_name.sync_detailed(NAMESPACE, "absent", client=client)
print(f"{deployed.name} {deployed.status}, then {missing.status_code.value}")
