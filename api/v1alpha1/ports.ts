/**
 * Reserved ports. Users write `[NODE_PORT]:VM_PORT` with an optional `/tcp` or `/udp` in upper or lower case. The default is TCP. NODE_PORT
 * is the port of the host, and VM_PORT is the port of the guest. If NODE_PORT is absent, the agent of the host chooses the port.
 *
 * The setting `ports` of the operator and of each agent contains the host ports that VMs are allowed to reserve, and the ranges from which
 * agents choose ports.
 */
import * as z from 'zod';
import { documented } from './schema.ts';

/** A port in the guest. */
export interface GuestPort {
  guestPort: number;
  protocol: 'TCP' | 'UDP';
}

/** A port of a host. Only Pods that run no machine have SCTP. */
export interface HostPort {
  hostPort: number;
  protocol: GuestPort['protocol'] | 'SCTP';
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

/** Returns the name of a port of a host, for example `8822-tcp`. Endpoints have this name. The name is unique on the host. */
export function portName(port: HostPort): string {
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

const LAST_PORT = 65_535;
/** Port of the VNC display 0. The port of another display is this port plus the display's number. */
export const VNC_FIRST_PORT = 5900;
/** Lowest port on which programs without root rights can listen. Lower ports are for the host's own services. */
const FIRST_UNPRIVILEGED_PORT = 1024;

/**
 * Default of `denied`: the ports that VMs are not allowed to reserve. They are the ports of etcd, the control plane and the kubelet, the
 * port of the chart's agent, and the node ports of Services.
 */
const DENIED = ['2379-2380', '6443', '10250-10259', '10350', '30000-32767'];

/** Returns the first and the last port of a range. Both ports belong to the range. The result is undefined if the text is not a range. */
export function bounds(text: string): readonly [number, number] | undefined {
  const [first = '', last = first, ...rest] = text.split('-');
  const ends = [Number(first), Number(last)] as const;
  const areDigits = [first, last].every((end) => /^\d{1,5}$/.test(end));
  return areDigits && rest.length === 0 && isOrdered(ends) ? ends : undefined;
}

function isOrdered([first, last]: readonly [number, number]): boolean {
  return 1 <= first && first <= last && last <= LAST_PORT;
}

const range = z
  .string()
  .regex(/^\d{1,5}(-\d{1,5})?$/)
  .refine((text) => bounds(text) !== undefined, {
    error: `a port such as "8080", or a range such as "8000-8999", from 1 to ${LAST_PORT}`,
  });
const ranges = z.array(range).max(64);

export const portRulesSchema = z
  .strictObject({
    reservable: ranges
      .default([`${FIRST_UNPRIVILEGED_PORT}-${LAST_PORT}`])
      .meta({ examples: [['8000-8999']] }),
    /** Ports that VMs are not allowed to reserve, even if `reservable` contains them. */
    denied: ranges.default(DENIED).meta({ examples: [['6443']] }),
  })
  .prefault({});

export type PortRules = z.infer<typeof portRulesSchema>;

/** Returns the schema of a range from which a host chooses ports. `fallback` is the default range. */
const choice = (fallback: string) => range.default(fallback).meta({ examples: ['25000-25999'] });

/**
 * Ranges from which a host chooses ports. The host begins with the last port of a range and goes downwards. Ranges can overlap. A host
 * never chooses a port in `denied`. The list `reservable` does not limit the host's choice.
 */
const portRangesSchema = z.strictObject({
  /** Host ports for reservations that name only the guest port, for example `:8080`. */
  automatic: choice('20000-21999'),
  /** Host ports that lead to SSH in guests. */
  ssh: choice('8822-9122'),
  /** Host ports that lead to screen sharing in macOS guests. */
  screen: choice('5900-6200'),
  /** Host ports that lead to ADB of emulators with `exposure: Host`. */
  emulators: choice('5554-5754'),
  /** Host ports for the screens of VMs with `vnc.hostPort`. */
  vnc: choice('5999-6299').refine((text) => (bounds(text)?.[0] ?? 0) >= VNC_FIRST_PORT, {
    error: `a range whose first port is ${VNC_FIRST_PORT} (the first port of VNC) or a higher port`,
  }),
});
export type PortRanges = z.infer<typeof portRangesSchema>;

/** Schema of the setting `ports` of an agent: the rules and the ranges. */
export const hostPortsSchema = z
  .strictObject({ ...portRulesSchema.unwrap().shape, ...portRangesSchema.shape })
  .prefault({});

/**
 * Returns the reason why VMs are not allowed to reserve this port of a host. The reason names the setting. The result is undefined if VMs
 * are allowed to reserve the port.
 */
export function whyNotReservable(rules: PortRules, port: number): string | undefined {
  return isIn(rules.reservable, port)
    ? whyDenied(rules, port)
    : `port ${port} is not among ports.reservable (${rules.reservable.join(', ')})`;
}

/**
 * Returns the reason why no machine is allowed to use this port of a host. The reason names the setting. The result is undefined if
 * machines are allowed to use the port.
 */
export function whyDenied({ denied }: PortRules, port: number): string | undefined {
  return isIn(denied, port) ? `port ${port} is among ports.denied (${denied.join(', ')})` : undefined;
}

function isIn(texts: readonly string[], port: number): boolean {
  return texts.some((text) => {
    const [first, last] = bounds(text) ?? [0, 0];
    return first <= port && port <= last;
  });
}
