/** Turns the machine fields of a request into those of a VM or a VMConfig. */
import type { MachineRequest } from '../../api/http/machine.ts';
import type { VMConfigSpec } from '../../api/v1alpha1/vmconfig.ts';

const MEBIBYTES_PER_GIBIBYTE = 1024;

/** Returns the fields that a VM and a VMConfig have in common. A field that is not given is undefined. */
export function machineSpec(request: MachineRequest): VMConfigSpec {
  const { image, iso, cpu, memory, displayWidth, displayHeight, displayDPI, vncConsole } = request;
  return {
    image,
    iso,
    cpu,
    memory: memory === undefined ? undefined : `${Math.round(memory * MEBIBYTES_PER_GIBIBYTE)}Mi`,
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
