/** Reads from the Node of a host whether the host can run an Emulator. All functions are pure. */
import type { EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { systemImageName } from '../../api/v1alpha1/emulatormachine.ts';
import { EMULATORS_CONDITION, SYSTEM_IMAGE_LABEL_PREFIX } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Node } from '../../kube/core.ts';
import { equal } from '../../kube/mergepatch.ts';
import type { OperatorConfig } from '../config/config.ts';
import { conditionIn } from '../objects/conditions.ts';
import { resolveSpec } from './spec.ts';

/** Largest number of system images that a message names. */
const IMAGES_NAMED = 10;

export interface HostFault {
  readonly reason: Reason;
  readonly message: string;
}

/**
 * Returns the reason why this host cannot run the Emulator. The result is undefined if the host can run the Emulator. The Nodes of
 * simulated hosts, and of hosts with an earlier release, have no condition about emulators. If the architecture of such a host is allowed,
 * the operator assumes that the host can run every Emulator.
 */
export function hostFault(
  node: Node | undefined,
  spec: EmulatorSpec,
  config: OperatorConfig,
): HostFault | undefined {
  return node === undefined ? undefined : (wrongArchitecture(node, config) ?? withoutImage(node, spec));
}

function wrongArchitecture({ metadata, status }: Node, { emulators }: OperatorConfig): HostFault | undefined {
  const architecture = metadata.labels?.['kubernetes.io/arch'] ?? status?.nodeInfo?.architecture;
  const allowed: readonly string[] = emulators.architectures;
  if (architecture === undefined || allowed.includes(architecture)) {
    return undefined;
  }
  return {
    reason: 'ArchitectureNotAllowed',
    message: `Host ${metadata.name} has the architecture ${architecture}. The operator allows emulators only on ${allowed.join(' and ')} hosts`,
  };
}

function withoutImage(node: Node, spec: EmulatorSpec): HostFault | undefined {
  const { name } = node.metadata;
  const { status, message = '' } = conditionIn(node.status, EMULATORS_CONDITION) ?? {};
  if (status === 'False') {
    return { reason: 'HostWithoutEmulators', message: `Host ${name} runs no emulators: ${message}` };
  }
  const wanted = systemImageName(resolveSpec(spec));
  const present = systemImagesOf(node);
  if (status !== 'True' || present.includes(wanted)) {
    return undefined;
  }
  const missing = `Host ${name} has no system image ${wanted}; it has ${namesOf(present)}`;
  return { reason: 'SystemImageMissing', message: missing };
}

function namesOf(images: readonly string[]): string {
  const named = images.toSorted().slice(0, IMAGES_NAMED).join(', ') || 'none';
  return images.length > IMAGES_NAMED ? `${named} and ${images.length - IMAGES_NAMED} more` : named;
}

function systemImagesOf({ metadata: { labels = {} } }: Readonly<Node>): string[] {
  return Object.keys(labels)
    .filter((label) => label.startsWith(SYSTEM_IMAGE_LABEL_PREFIX))
    .map((label) => label.slice(SYSTEM_IMAGE_LABEL_PREFIX.length));
}

/**
 * Returns true if the host's list of system images changed. The list is in the labels of the Node, and `hostStateChanged` ignores labels.
 */
export function systemImagesChanged(before: Readonly<Node> | undefined, after: Readonly<Node>): boolean {
  return before === undefined || !equal(systemImagesOf(before), systemImagesOf(after));
}
