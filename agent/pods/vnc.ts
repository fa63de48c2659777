/** Prepares the access to a machine's screen over VNC, on a port of the host. The password comes from the Secret of the machine's VM. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { VNC_SECRET_KEY, vncSecretName } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { writeWhole } from '../../base/files.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { VmLaunchPlan } from '../drivers/driver.ts';
import type { Host } from './host.ts';
import { needed, type Runtime } from './machine.ts';
import { vncPortOf } from './portclaims.ts';
import { readSecret } from './secrets.ts';

/** Name of the file in the machine's folder that contains the VNC password. Because of this file, a later start needs no API server. */
const PASSWORD_FILE = 'vnc.password';
/**
 * Pattern of a VNC password. Its length is exactly eight, because VNC ignores all characters after the eighth. A longer password would be
 * weaker than it looks.
 */
const PASSWORD = /^[!-~]{8}$/;

/**
 * Returns the VNC password of a VM. @throws ReasonedError `VNCSecretNotFound` when there is no Secret with a valid password, or the Secret
 * belongs to an earlier VM of the same name; `SecretNotRead` when the API server does not give the Secret.
 */
export async function readVncPassword(
  client: Pick<KubeClient, 'get'>,
  { namespace, name: vmName, uid }: Machine['vm'],
): Promise<string> {
  const name = vncSecretName(vmName);
  const secret = await readSecret(client, { namespace, name });
  const owners = secret?.metadata.ownerReferences ?? [];
  if (secret === undefined || !owners.some((owner) => owner.uid === uid)) {
    const message = `The host is waiting for the Secret ${name} of this VM in ${namespace}. The operator creates this Secret`;
    throw new ReasonedError('VNCSecretNotFound', message);
  }
  const password = Buffer.from(secret.data?.[VNC_SECRET_KEY] ?? '', 'base64').toString('latin1');
  if (!PASSWORD.test(password)) {
    const message = `The Secret ${name} in ${namespace} must contain a password of 8 ASCII characters under the key ${VNC_SECRET_KEY}. Delete the Secret so that the operator creates it again`;
    throw new ReasonedError('VNCSecretNotFound', message);
  }
  return password;
}

/**
 * Returns the VNC password of a machine; undefined if the machine does not need a password. Call this function before the machine's disk is
 * made. After that, the host cannot report a missing Secret, and the operator does not create the Secret again.
 *
 * @throws ReasonedError `VNCSecretNotFound` when there is no password.
 */
export async function requireVncPassword(host: Host, { record }: Runtime): Promise<string | undefined> {
  return vncPortOf(record) === undefined ? undefined : await host.vncPassword(needed(record.machine).vm);
}

/** Writes the password into the folder of a new machine, so that its first start works even if somebody has deleted the Secret by then. */
export async function keepVncPassword({ folder }: Runtime, password: string | undefined): Promise<void> {
  if (password !== undefined) {
    await writeWhole(join(folder.path, PASSWORD_FILE), password);
  }
}

/**
 * Writes the password into the machine's folder, unless the folder already has it. Returns the address and port at which the hypervisor
 * serves the screen.
 */
export async function prepareVnc(
  host: Host,
  { record, folder }: Pick<Runtime, 'record' | 'folder'>,
): Promise<VmLaunchPlan['vnc']> {
  const port = vncPortOf(record);
  if (port === undefined) {
    return undefined;
  }
  const path = join(folder.path, PASSWORD_FILE);
  if ((await undefinedIf(isMissing, readFile(path, 'latin1'))) === undefined) {
    await writeWhole(path, await host.vncPassword(needed(record.machine).vm));
  }
  return { address: host.forwardAddress, port, passwordFile: PASSWORD_FILE };
}
