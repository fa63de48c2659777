/**
 * Reserved ports. Users write `[NODE_PORT]:VM_PORT` with an optional `/tcp` or `/udp` in upper or lower case. The default is TCP. NODE_PORT
 * is the port of the host, and VM_PORT is the port of the guest. If NODE_PORT is absent, the agent of the host chooses the port.
 */
import * as z from 'zod';
import { documented } from './schema.ts';

/** A port in the guest. */
export interface GuestPort {
  guestPort: number;
  protocol: 'TCP' | 'UDP';
}

/** A reserved port. Connections to `hostPort` of the machine's host reach `guestPort` in the guest. */
interface PortReservation extends GuestPort {
  hostPort: number;
}

/** A reserved port as users write it. If `hostPort` is undefined, the agent of the host chooses the host port. */
interface WrittenPort extends GuestPort {
  hostPort: number | undefined;
}

/** Largest number of reserved ports of one machine. */
const MAXIMUM_PORTS = 64;
/**
 * Largest length of the text of a reserved port, in characters. A valid text has at most 15 characters. This limit is higher, so that a
 * text that is a little too long is refused by the pattern and not by the limit. Only the error message of the pattern explains the form of
 * a reserved port.
 */
const PORT_LENGTH = 32;

const NUMBER = '([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])';
const PORT_PATTERN = `^${NUMBER}?:${NUMBER}(/([tT][cC][pP]|[uU][dD][pP]))?$`;
const PORT = new RegExp(PORT_PATTERN);
const FORM =
  'must be [<NODE_PORT>]:<VM_PORT>, optionally with /tcp or /udp, ports from 1 to 65535 without leading zeros';

/** Parses a reserved port. @throws RangeError when `text` is not a reserved port. The message explains the form. */
export function parsePort(text: string): WrittenPort {
  const match = PORT.exec(text);
  if (match === null) {
    throw new RangeError(`port ${JSON.stringify(text.slice(0, PORT_LENGTH))} ${FORM}`);
  }
  const [, hostPort, guestPort, , protocol] = match;
  return {
    hostPort: hostPort === undefined ? undefined : Number(hostPort),
    guestPort: Number(guestPort),
    protocol: protocol?.toUpperCase() === 'UDP' ? 'UDP' : 'TCP',
  };
}

/** Returns the name of the endpoint of a reserved port, for example `8822-tcp`. The name is unique on the host. */
export function portName(port: Pick<PortReservation, 'hostPort' | 'protocol'>): string {
  return `${port.hostPort}-${port.protocol.toLowerCase()}`;
}

function areDistinct(ports: readonly string[]): boolean {
  const names = ports
    .filter((port) => PORT.test(port))
    .map(parsePort)
    .map(({ hostPort, guestPort, protocol }) =>
      hostPort === undefined ? `:${guestPort} ${protocol}` : portName({ hostPort, protocol }),
    );
  return new Set(names).size === names.length;
}

/**
 * CEL expression that is true if the texts `p` and `q` reserve the same port. Two texts with node ports reserve the same port if their node
 * ports and protocols are equal. Without node ports, the guest ports and protocols must be equal.
 */
const SAME =
  "q.split(':')[0] == p.split(':')[0] && q.lowerAscii().endsWith('/udp') == p.lowerAscii().endsWith('/udp')" +
  " && (!q.startsWith(':') || q.split('/')[0] == p.split('/')[0])";
const TWICE = 'the same node port and protocol may be reserved only once';

export const portsSchema = z
  .array(
    z
      .string()
      .max(PORT_LENGTH)
      .refine((port) => PORT.test(port), { error: FORM })
      .meta(
        documented('`[NODE_PORT]:VM_PORT`, optionally with `/tcp` or `/udp`.', {
          rule: `self.matches('${PORT_PATTERN}')`,
          message: `port ${FORM}`,
          messageExpression: `'port "' + self + '" ${FORM}'`,
        }),
      ),
  )
  .max(MAXIMUM_PORTS)
  .refine(areDistinct, { error: TWICE })
  .meta({
    ...documented(
      `Ports of the host that are forwarded to the guest, at most ${MAXIMUM_PORTS}. The form is \`[NODE_PORT]:VM_PORT\` with an optional \`/tcp\` or \`/udp\`, TCP when omitted. If NODE_PORT is omitted, as in \`:8080\`, the host chooses a free port and reports it in status.endpoints. Ports are 1 to 65535, without leading zeros. For each protocol, a node port can appear only once. The network mode must be NAT, and the setting \`ports\` of the operator must allow the node ports.`,
      {
        rule: `self.all(p, self.exists_one(q, ${SAME}))`,
        message: `ports: ${TWICE}`,
        messageExpression: `'ports: ${TWICE}: ' + self.filter(p, !self.exists_one(q, ${SAME}))[0]`,
      },
    ),
    'x-kubernetes-list-type': 'atomic',
  });
