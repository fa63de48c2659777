/** Writes the keys and certificates of a temporary control plane, with one authority for all certificates. */
import { generateKeyPairSync } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createKey, type CertificateSubject } from '../../kube/certificates/certificate.ts';
import { type Authority, createAuthority, issue } from './authority.ts';
import { type KeyAndCertificate, writeKubeconfig } from './kubeconfig.ts';

/** Users of the components. Each has a kubeconfig in `pki/`. */
const COMPONENT_USERS = {
  'kube-controller-manager': 'system:kube-controller-manager',
  'kube-scheduler': 'system:kube-scheduler',
} as const;

/** Name of the API server's client certificate for aggregated API servers, and of its files. */
export const FRONT_PROXY = 'front-proxy-client';

/** Name and address of a node with a kubelet. */
export interface NodeIdentity {
  name: string;
  address: string;
}

export interface CredentialsOptions {
  /** Address of the API server in kubeconfigs. */
  server: string;
  /** Another address of the API server, for its certificate. */
  address?: string;
  nodes?: readonly NodeIdentity[];
}

/** Writes keys and certificates to `DIRECTORY/pki`, and the administrator's kubeconfig to `DIRECTORY/kubeconfig`. */
export async function writeCredentials(
  name: string,
  directory: string,
  { server, address, nodes = [] }: CredentialsOptions,
): Promise<void> {
  const pki = join(directory, 'pki');
  mkdirSync(pki, { recursive: true, mode: 0o700 });
  const authority = await createAuthority(`berth-${name}`);
  writePair(pki, 'ca', { key: authority.key.pem, certificate: authority.certificate });
  writeServiceAccountKeys(pki);
  writePair(pki, 'kube-apiserver', await apiServerPair(authority, address));
  writePair(pki, 'kubelet-client', await clientPair(authority, 'kube-apiserver-kubelet-client'));
  // The API server has this certificate when it passes requests to an aggregated API server.
  writePair(pki, FRONT_PROXY, await clientPair(authority, FRONT_PROXY));
  const admin = await clientPair(authority, 'berth-admin', ['system:masters']);
  writePair(pki, 'admin', admin);
  const content = { server, authority: authority.certificate };
  writeKubeconfig(join(directory, 'kubeconfig'), { ...content, user: { kind: 'certificate', pair: admin } });
  const kubeconfig = (component: string, pair: KeyAndCertificate, from = server): void =>
    writeKubeconfig(join(pki, `${component}.kubeconfig`), {
      ...content,
      server: from,
      user: { kind: 'certificate', pair },
    });
  for (const [component, user] of Object.entries(COMPONENT_USERS)) {
    kubeconfig(component, await clientPair(authority, user));
  }
  if (address === undefined) {
    return;
  }
  const beyond = `https://${address}:${new URL(server).port}`;
  kubeconfig('kube-proxy', await clientPair(authority, 'system:kube-proxy'), beyond);
  for (const node of nodes) {
    writePair(
      pki,
      node.name,
      await serverPair(authority, { commonName: node.name, ipAddresses: [node.address] }),
    );
    kubeconfig(node.name, await clientPair(authority, `system:node:${node.name}`, ['system:nodes']), beyond);
  }
}

function apiServerPair(authority: Authority, address: string | undefined): Promise<KeyAndCertificate> {
  return serverPair(authority, {
    commonName: 'kube-apiserver',
    dnsNames: ['localhost', 'kubernetes', 'kubernetes.default', 'kubernetes.default.svc'],
    ipAddresses: ['127.0.0.1', '10.96.0.1', ...(address === undefined ? [] : [address])],
  });
}

async function serverPair(authority: Authority, subject: CertificateSubject): Promise<KeyAndCertificate> {
  const key = await createKey();
  const certificate = await issue(authority, { ...subject, key, usages: ['server'] });
  return { key: key.pem, certificate };
}

async function clientPair(
  authority: Authority,
  commonName: string,
  organizations: string[] = [],
): Promise<KeyAndCertificate> {
  const key = await createKey();
  const certificate = await issue(authority, { key, commonName, organizations, usages: ['client'] });
  return { key: key.pem, certificate };
}

/** Writes the key pair that signs ServiceAccount tokens. */
function writeServiceAccountKeys(directory: string): void {
  const keys = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const secret = keys.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
  writeSecret(join(directory, 'service-account.key'), secret);
  const open = keys.publicKey.export({ type: 'spki', format: 'pem' }).toString();
  writeSecret(join(directory, 'service-account.pub'), open);
}

function writePair(directory: string, name: string, pair: KeyAndCertificate): void {
  writeSecret(join(directory, `${name}.key`), pair.key);
  writeSecret(join(directory, `${name}.crt`), pair.certificate);
}

function writeSecret(path: string, text: string): void {
  writeFileSync(path, text.endsWith('\n') ? text : `${text}\n`, { mode: 0o600 });
}
