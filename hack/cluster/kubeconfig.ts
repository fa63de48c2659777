/** Writes kubeconfig files as block YAML with inline data, which people and simple scripts can read. */
import { stringify } from 'yaml';
import { writeWholeSync } from '../../base/files.ts';

/** Private key and certificate as PEM texts. */
export interface KeyAndCertificate {
  key: string;
  certificate: string;
}

export interface KubeconfigContent {
  server: string;
  /** Certificate of the authority as PEM. */
  authority: string;
  user: KubeconfigUser;
}

export type KubeconfigUser =
  | { kind: 'certificate'; pair: KeyAndCertificate }
  | { kind: 'tokenFile'; path: string }
  | { kind: 'token'; token: string };

/** Replaces the file in one step. Only its owner can read it. */
export function writeKubeconfig(path: string, content: KubeconfigContent): void {
  const document = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'berth',
    clusters: [
      {
        name: 'berth',
        cluster: { server: content.server, 'certificate-authority-data': base64(content.authority) },
      },
    ],
    contexts: [{ name: 'berth', context: { cluster: 'berth', user: 'berth' } }],
    users: [{ name: 'berth', user: userEntry(content.user) }],
  };
  writeWholeSync(path, stringify(document, { lineWidth: 0 }));
}

function userEntry(user: KubeconfigUser): Record<string, string> {
  if (user.kind === 'tokenFile') {
    return { tokenFile: user.path };
  }
  if (user.kind === 'token') {
    return { token: user.token };
  }
  return {
    'client-certificate-data': base64(user.pair.certificate),
    'client-key-data': base64(user.pair.key),
  };
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64');
}
