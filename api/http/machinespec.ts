/** Turns the machine fields of a request into the fields of a VM or a VMConfig. */
import type { MachineRequest } from './machine.ts';
import { quantityOf } from './memory.ts';
import type { VMConfigItem } from './vmconfig.ts';
import type { VMConfigSpec } from '../v1alpha1/vmconfig.ts';

/** Returns the fields that a VM and a VMConfig have in common. A field that the request does not give is undefined. */
export function machineSpec(request: MachineRequest): VMConfigSpec {
  const { image, iso, cpu, memory, displayWidth, displayHeight, displayDPI, vncConsole } = request;
  return {
    image,
    iso,
    cpu,
    memory: memory === undefined ? undefined : quantityOf(memory),
    displayWidth,
    displayHeight,
    displayDPI,
    vnc: vncConsole === undefined ? undefined : { enabled: vncConsole },
    placement: placementOf(request),
  };
}

function placementOf({ node, tag, tagRequired, scheduler }: MachineRequest): VMConfigSpec['placement'] {
  if ((node ?? tag ?? scheduler) === undefined) {
    return undefined;
  }
  return {
    node,
    tag,
    tagPolicy: tag === undefined ? undefined : tagRequired === true ? 'Required' : 'Preferred',
    strategy: scheduler && (scheduler === 'most-allocated' ? 'MostAllocated' : 'Default'),
  };
}

/** Returns the spec of a VMConfig. `type` is the architecture of its VMs. */
export function vmConfigSpec({
  type,
  ...machine
}: MachineRequest & Pick<VMConfigItem, 'type'>): VMConfigSpec {
  return { ...machineSpec(machine), architecture: type };
}
