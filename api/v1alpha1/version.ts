/** Versions of the operator and of the agents. The Node of a host shows the version of its agent. */

/** Version of this release of Berth. */
export const VERSION = '0.1.0';
/** Largest number of minor releases between an operator and an agent that work together. */
const SUPPORTED_MINOR_RELEASES = 1;

/**
 * Version that the Node of a host reports: the version of the kubelet API that the agent follows, then the agent's own version.
 * Tools parse this text as a version.
 */
export const NODE_VERSION = `v1.36.3-berth.${VERSION}`;

/**
 * Form of {@link NODE_VERSION} in any release. A host could write any text there. Each part has a largest length, so a long text cannot
 * make the match slow.
 */
const NODE_VERSION_FORM = /^v\d[\d.]{0,31}-berth\.(\d{1,6}\.\d{1,6}\.[-+.\w]{1,64})$/;

/** Returns the agent's version from the kubelet version of its Node. The result is undefined if no agent of Berth wrote that version. */
export function agentVersion(nodeVersion: string | undefined): string | undefined {
  return NODE_VERSION_FORM.exec(nodeVersion ?? '')?.[1];
}

/** Reports whether an agent of this version is more than one minor release apart from the operator of this release. */
export function isTooFarApart(version: string, own: string = VERSION): boolean {
  const [major, minor = 0] = version.split('.').map(Number);
  const [ownMajor, ownMinor = 0] = own.split('.').map(Number);
  return major !== ownMajor || Math.abs(minor - ownMinor) > SUPPORTED_MINOR_RELEASES;
}
