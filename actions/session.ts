/**
 * Sessions with the machine of a VM, which are commands in its Pod: how they end, and the picture of the screen, which is the output of such a
 * session.
 */
import type { Readable } from 'node:stream';
import { MACHINE_CONTAINER, SCREENSHOT_BYTES, SCREENSHOT_COMMAND } from '../api/v1alpha1/names.ts';
import { type JsonLimits, parseJson } from '../base/json.ts';
import { COMMAND_CHANNEL, COMMAND_PROTOCOL } from '../kube/channelprotocol.ts';
import type { Channels } from '../kube/channels.ts';
import { PODS } from '../kube/core.ts';
import { ApiError, isNotFound } from '../kube/errors.ts';
import { pathOf } from '../kube/objects.ts';
import type { Transport } from '../kube/transport.ts';
import { ActionError } from './error.ts';

/** `metav1.Status`, which the host sends at the end of a session. */
export interface SessionStatus {
  readonly status?: string;
  readonly message?: string;
  readonly reason?: string;
  readonly details?: { readonly causes?: readonly { readonly reason?: string; readonly message?: string }[] };
}

/** Limits of the Status at the end of a session. It has a few fields and one message. */
const STATUS_LIMITS: JsonLimits = { bytes: 64 * 1024, items: 256 };

/** Returns the Status at the end of a session. The result is undefined if the connection was lost before the end. */
export function parseSessionStatus(text: string): SessionStatus | undefined {
  try {
    return parseJson(text, STATUS_LIMITS) ?? {};
  } catch {
    return undefined;
  }
}

/**
 * Text that the API server puts before the message of a host that refuses a session. The code removes this text, because only the host's
 * message names the next step.
 */
const HOST_REFUSES = /^Internal error occurred: (?:unable to upgrade connection: )?/;

/** Returns the message of the host. */
export function hostMessage({ message = '' }: Pick<SessionStatus, 'message'>): string {
  return message.replace(HOST_REFUSES, '');
}

/** Largest part of a message that is kept, in bytes. Hosts send one or two sentences, or a Status of a few hundred bytes. */
const LIMIT_BYTES = 16 * 1024;

/**
 * Resolves with the text of the stream, without the first `skippedBytes`. Never rejects. If the stream fails, the result is the text before
 * the failure.
 */
export async function readMessage(stream: Readable, skippedBytes = 0): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      if (bytes < LIMIT_BYTES) {
        chunks.push(chunk);
        bytes += chunk.length;
      }
    }
  } catch {
    // If the stream fails, the result is the text that arrived before.
  }
  return Buffer.concat(chunks).subarray(skippedBytes, LIMIT_BYTES).toString();
}

/** Start of a file in the format PNG (PNG specification, section 5.2). */
const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

/**
 * Returns a picture of the screen of a VM, as PNG of at most {@link SCREENSHOT_BYTES}. `watches` has the rights of the caller, who needs the
 * right to `pods/exec`.
 *
 * @throws ActionError when the VM has no screen now, or the host sends no picture; ApiError; the signal's reason when the signal aborts.
 */
export async function takePicture(
  watches: Pick<Transport, 'channels'>,
  vm: { readonly namespace: string; readonly name: string },
  signal: AbortSignal,
): Promise<Buffer> {
  const query = { command: SCREENSHOT_COMMAND, stdin: 'false', stdout: 'true', stderr: 'true', tty: 'false' };
  const parameters = new URLSearchParams({ container: MACHINE_CONTAINER, ...query });
  const path = `${pathOf(PODS, vm, 'exec')}?${parameters.toString()}`;
  const numbers = [COMMAND_CHANNEL.stdout, COMMAND_CHANNEL.stderr, COMMAND_CHANNEL.status];
  let channels: Channels;
  try {
    channels = await watches.channels({ path, protocol: COMMAND_PROTOCOL, numbers, signal });
  } catch (error) {
    throw refusalOf(error, vm.name);
  }
  channels.channel(COMMAND_CHANNEL.stderr).resume();
  const [picture, text] = await Promise.all([
    readPicture(channels),
    readMessage(channels.channel(COMMAND_CHANNEL.status)),
    channels.ended,
  ]);
  signal.throwIfAborted();
  if (picture.length > SCREENSHOT_BYTES) {
    throw noPicture(vm.name);
  }
  const status = parseSessionStatus(text);
  if (status === undefined) {
    throw new ActionError('unanswered', `The connection to VM ${vm.name} was lost. Connect again`);
  }
  if (status.status !== 'Success') {
    throw new ActionError('refused', hostMessage(status) || `VM ${vm.name} has no screen now`);
  }
  if (!picture.subarray(0, PNG.length).equals(PNG)) {
    throw noPicture(vm.name);
  }
  return picture;
}

/** Reads the output of the session. If it is too long, the session ends, and the result is too long by less than one message. */
async function readPicture(channels: Channels): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of channels.channel(COMMAND_CHANNEL.stdout) as AsyncIterable<Buffer>) {
    bytes += piece.length;
    pieces.push(piece);
    if (bytes > SCREENSHOT_BYTES) {
      channels.close();
      break;
    }
  }
  return Buffer.concat(pieces);
}

function noPicture(name: string): ActionError {
  const message = `The host of VM ${name} did not send a picture as PNG of at most ${SCREENSHOT_BYTES} bytes`;
  return new ActionError('unanswered', message);
}

/** Returns the error for the user if the VM has no machine, or its host refuses. Users do not know the Pods of VMs. */
function refusalOf(error: unknown, name: string): unknown {
  if (!(error instanceof ApiError)) {
    return error;
  }
  const { status, message } = error;
  const isWithoutPod = isNotFound(error) && message.startsWith('pods ');
  // The API server answers 400 if the Pod has no host yet, or its machine does not run.
  if (isWithoutPod || status === 400) {
    return new ActionError('refused', `VM ${name} has no machine now. Wait until the VM runs`);
  }
  return HOST_REFUSES.test(message) ? new ActionError('refused', hostMessage(error)) : error;
}
