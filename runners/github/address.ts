/** Finds the addresses of a server of GitHub from the URL that users know. */

export interface GitHubAddress {
  /** URL of an organization, a repository or an enterprise. */
  readonly url: string;
  /** Name of the server with its port, if the port is not the default. */
  readonly host: string;
  /** Base of the REST API, without a slash at its end. */
  readonly api: string;
  /** Path of the organization, the repository or the enterprise in the REST API. */
  readonly scope: string;
}

/** Reads a URL that the schema of RunnerSets accepts. @throws TypeError when it is no URL */
export function parseAddress(text: string): GitHubAddress {
  const { host, pathname } = new URL(text);
  const [first = '', second] = pathname.split('/').filter((part) => part !== '');
  const isEnterprise = first === 'enterprises' && second !== undefined;
  const scope = isEnterprise
    ? `enterprises/${second}`
    : second === undefined
      ? `orgs/${first}`
      : `repos/${first}/${second}`;
  const name = host.replace(/^www\.(?=github\.com$)/, '');
  return { url: text, host: name, api: apiBase(name), scope };
}

function apiBase(host: string): string {
  return host === 'github.com' || host.endsWith('.ghe.com')
    ? `https://api.${host}`
    : `https://${host}/api/v3`;
}
