/** Turns a VMConfig into the item that the HTTP API and the `berth` command show. */
import type { VMConfigItem } from './vmconfig.ts';
import type { VMConfig } from '../v1alpha1/vmconfig.ts';
import { gibibytes } from './memory.ts';

export function vmConfigItem({ metadata, spec }: VMConfig): VMConfigItem {
  const { image, iso, cpu, memory, architecture, vnc, displayWidth, displayHeight, displayDPI } = spec;
  const gib = gibibytes(memory);
  return {
    name: metadata.name,
    namespace: metadata.namespace,
    image,
    iso,
    cpu,
    memory: gib === undefined ? undefined : Number(gib),
    type: architecture,
    ...placementOf(spec),
    vncConsole: vnc?.enabled,
    displayWidth,
    displayHeight,
    displayDPI,
  };
}

function placementOf({
  placement = {},
}: VMConfig['spec']): Pick<VMConfigItem, 'node' | 'scheduler' | 'tag' | 'tagRequired'> {
  const { node, strategy, tag, tagPolicy } = placement;
  return {
    node,
    scheduler: strategy && (strategy === 'MostAllocated' ? 'most-allocated' : 'default'),
    tag,
    tagRequired: tag === undefined ? undefined : tagPolicy === 'Required',
  };
}
