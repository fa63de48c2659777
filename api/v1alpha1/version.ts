/** Versions of the operator and of the agents. The version of an agent is in the Node of its host. */

/** Version of this release of Berth. */
export const VERSION = '0.1.0';
/** Largest difference in minor releases with which an operator and an agent still work together. */
const SUPPORTED_MINOR_RELEASES = 1;

/** Version of the kubelet API that the agent implements. */
const KUBELET_VERSION = 'v1.36.3';
/** Beginning of the version of an API server. Providers add their own text, for example `-gke.100`. */
const SERVER_VERSION_FORM = /^v1\.(\d{1,4})\.(\d{1,4})/;

/**
 * Returns the version that the Node of a host reports: the version of the kubelet API, and the agent's own version. The text has this form,
 * because tools parse it as a version. `server` is the version of the API server, if it is known. The Node never reports a newer version, because tools for
 * upgrades refuse a cluster with such a Node.
 */
export function nodeVersion(server = ''): string {
  const match = SERVER_VERSION_FORM.exec(server);
  const isOlder = match !== null && rank(match[0]) < rank(KUBELET_VERSION);
  return `${isOlder ? match[0] : KUBELET_VERSION}-berth.${VERSION}`;
}

/** Returns a number that is larger for later versions. */
function rank(version: string): number {
  const [, minor = 0, patch = 0] = version.split('.').map(Number);
  return minor * 10_000 + patch;
}

/**
 * Pattern of the result of {@link nodeVersion} in any release. The pattern limits the length of each part. Without limits, a host could slow down the
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
