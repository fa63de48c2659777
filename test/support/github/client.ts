/** Makes a client of GitHub for a stub. */
import { generateKeyPairSync } from 'node:crypto';
import { GITHUB_SECRET_TYPE } from '../../../api/v1alpha1/names.ts';
import { Addresses } from '../../../base/addresses.ts';
import { Proxies } from '../../../base/proxy.ts';
import type { Secret } from '../../../kube/core.ts';
import { parseAddress } from '../../../runners/github/address.ts';
import { GitHub } from '../../../runners/github/client.ts';
import { readCredentials } from '../../../runners/github/credentials.ts';
import { Exchange } from '../../../runners/github/exchange.ts';
import { GitHubHttp } from '../../../runners/github/http.ts';
import { Tokens } from '../../../runners/github/tokens.ts';
import type { GitHubStub } from './stub.ts';

/** Returns a Secret with credentials for GitHub. */
export function githubSecret(values: Record<string, string>, type = GITHUB_SECRET_TYPE): Secret {
  const data = Object.fromEntries(
    Object.entries(values).map(([key, value]) => [key, Buffer.from(value).toString('base64')]),
  );
  return { apiVersion: 'v1', kind: 'Secret', metadata: { name: 'github' }, type, data };
}

/** Returns the values of a Secret for a GitHub App. */
export function appValues(host: string): Record<string, string> {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const pem = privateKey.export({ type: 'pkcs1', format: 'pem' }).toString();
  return { clientId: 'Iv1', installationId: '42', privateKey: pem, host };
}

/** Returns a client for an organization of the stub, and a function that closes its connections. */
export function connectTo(
  stub: GitHubStub,
  org = 'acme',
  {
    values = appValues(stub.host),
    authorities = stub.authority,
    clock = Date.now,
    url = stub.url(org),
    proxies = new Proxies({}),
    namedHosts = [stub.host],
  } = {},
): { github: GitHub; close: () => Promise<void> } {
  const address = parseAddress(url);
  const credentials = readCredentials(githubSecret(values), 'github', address.host);
  const addresses = new Addresses({ refusesPrivate: true, namedHosts, advice: 'name it' });
  const http = new GitHubHttp({ authorities, proxies, addresses });
  const exchange = new Exchange(http);
  const tokens = new Tokens({ exchange, address, credentials, clock });
  return { github: new GitHub({ exchange, tokens, address }), close: async () => await http.close() };
}
