/** Collects the facts about the cluster that clients read before they sign in. */
import type { ClusterInfo } from '../../api/http/cluster.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import type { Connection } from '../../kube/credentials.ts';
import type { ServerConfig } from '../config.ts';

const HTTPS_PORT = '443';
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n?/;

/** Returns the facts, which stay the same while the server runs. `connection` is the server's own connection to the Kubernetes API. */
export function clusterInfo(
  { cluster, namespaces }: Pick<ServerConfig, 'cluster' | 'namespaces'>,
  connection: Pick<Connection, 'server' | 'serverName' | 'certificateAuthority'>,
): ClusterInfo {
  const { apiEndpoint, issuer, clientID, scopes, deviceFlow } = cluster;
  const { hostname, port, pathname } = new URL(apiEndpoint ?? connection.server);
  const ownName = apiEndpoint === undefined ? connection.serverName : undefined;
  return {
    // The URL always contains the port, even the default port, because clients read the port from the URL. The path stays, because a proxy
    // can serve several clusters, each under its own path.
    apiEndpoint: `https://${hostname}:${port || HTTPS_PORT}${pathname.replace(/\/+$/, '')}`,
    apiDomain: ownName ?? hostname.replace(/^\[(.*)\]$/, '$1'),
    certData: firstCertificate(cluster.certificateAuthority ?? connection.certificateAuthority),
    appClientId: clientID,
    baseOauthEndpoint: issuer ?? '',
    gpuPassthroughEnabled: false,
    issuer,
    scopes,
    deviceFlow: issuer !== undefined && deviceFlow,
    version: VERSION,
    namespaceDefault: namespaces.default,
  };
}

/** Returns only the first certificate of a chain, because clients expect exactly one. The result is empty if there is none. */
function firstCertificate(pem = ''): string {
  return CERTIFICATE.exec(pem)?.[0] ?? '';
}
