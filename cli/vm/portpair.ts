/** Reads pairs of ports from the command line. */
import { InvalidArgumentError } from 'commander';
import { SCREEN_PORT, SCREEN_PORT_NAME } from '../../api/v1alpha1/names.ts';

/** Port of this computer that leads to a port of a VM. */
export interface PortPair {
  /** Port of this computer. 0 means a free port. */
  readonly local: number;
  readonly remote: number;
}

const PORTS = 65_535;

/**
 * Reads a pair of ports from the text, and returns `before` with this pair added. The text is `LOCAL:REMOTE`, `REMOTE` for the same port on
 * both sides, or `:REMOTE` for a free local port.
 *
 * @throws InvalidArgumentError when the text has another form.
 */
export function pairIn(text: string, before: readonly PortPair[] = []): readonly PortPair[] {
  const [local = '', remote = local, ...more] = text.split(':');
  if (more.length > 0) {
    throw new InvalidArgumentError('It must have the form LOCAL:REMOTE, REMOTE or :REMOTE.');
  }
  const target = remoteIn(remote);
  return [...before, { local: local === '' ? 0 : local === remote ? target : portIn(local), remote: target }];
}

function remoteIn(text: string): number {
  return text === SCREEN_PORT_NAME ? SCREEN_PORT : portIn(text);
}

function portIn(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > PORTS) {
    throw new InvalidArgumentError(`A port must be a number from 1 to ${PORTS}, or ${SCREEN_PORT_NAME}.`);
  }
  return port;
}
