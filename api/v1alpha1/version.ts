/** Versions of the operator and of the agents. The version of an agent is in the Node of its host. */

/** Version of this release of Berth. */
export const VERSION = '0.1.0';
/** Largest difference in minor releases with which an operator and an agent still work together. */
const SUPPORTED_MINOR_RELEASES = 1;

/**
 * Version that the Node of a host reports. It contains the version of the kubelet API that the agent implements, and the agent's own
 * version. The text has this form, because tools parse it as a version.
 */
export const NODE_VERSION = `v1.36.3-berth.${VERSION}`;

/**
 * Pattern of {@link NODE_VERSION} in any release. The pattern limits the length of each part. Without limits, a host could slow down the
 * match with a long text.
 */
const NODE_VERSION_FORM = /^v\d[\d.]{0,31}-berth\.(\d{1,6}\.\d{1,6}\.[-+.\w]{1,64})$/;

/** Returns the agent's version from the kubelet version of its Node. The result is undefined if the Node has no agent of Berth. */
export function agentVersion(nodeVersion: string | undefined): string | undefined {
  return NODE_VERSION_FORM.exec(nodeVersion ?? '')?.[1];
}

/**
 * Reports whether an agent of version `version` is too old or too new for an operator of version `own`. Both can work together if the major
 * releases are equal and the minor releases differ by at most `SUPPORTED_MINOR_RELEASES`.
 */
export function isTooFarApart(version: string, own: string = VERSION): boolean {
  const [major, minor = 0] = version.split('.').map(Number);
  const [ownMajor, ownMinor = 0] = own.split('.').map(Number);
  return major !== ownMajor || Math.abs(minor - ownMinor) > SUPPORTED_MINOR_RELEASES;
}
