/**
 * Rules for the network addresses to which a program connects for its users. The rules are necessary because a user who names an image or a
 * server of jobs also chooses where this host connects. Connections to the host's own services, to metadata services of clouds, and to the
 * cluster are refused. An administrator can configure exceptions. The rules also hold for connections through a proxy.
 */
import { lookup } from 'node:dns';
import { lookup as lookUp } from 'node:dns/promises';
import { BlockList, isIP, type LookupFunction } from 'node:net';
import { networkInterfaces } from 'node:os';
import { buildConnector } from 'undici';
import { isOfSystem, undefinedIf } from './errors.ts';
import type { Proxy } from './proxy.ts';
import { rest } from './time.ts';
import { type ConnectOptions, tunnelConnector } from './tunnel.ts';

export interface AddressRules {
  /** True to allow addresses of this host itself and link-local addresses. */
  readonly allowsLocal?: boolean;
  /** True to refuse addresses of private networks, too. */
  readonly refusesPrivate?: boolean;
  /** Networks of the cluster's Pods, Services and Nodes. */
  readonly clusterCIDRs?: readonly string[];
  /**
   * Further addresses of this host, for example a public address that a router translates (NAT). The addresses of the host's network
   * interfaces are always added.
   */
  readonly ownAddresses?: readonly string[];
  /** Servers that may have any IP address, as `HOST` or `HOST:PORT` in small letters. An administrator has named them. */
  readonly namedHosts?: readonly string[];
  /** How an administrator allows a refused server. It is a part of the log. */
  readonly advice: string;
}

/** Refusal of a connection. The message is for the log only, because it tells about the network of this host. */
export class AddressError extends Error {
  override readonly name = 'AddressError';
  /** Host of the refused server, as the user gave it. */
  readonly hostname: string;

  constructor(hostname: string, message: string) {
    super(message);
    this.hostname = hostname;
  }
}

/** Networks of loopback and link-local addresses. */
const LOCAL = ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '::/128', '::1/128', 'fe80::/10'];

/**
 * Addresses at which clouds serve instance metadata to their machines: Amazon (also containers' credentials), Google, Azure's
 * WireServer, Alibaba, Oracle, Tencent, Scaleway. The addresses come from the clouds' documentation of instance metadata.
 */
const METADATA = [
  '169.254.169.254/32',
  '169.254.170.2/32',
  '169.254.170.23/32',
  '169.254.0.23/32',
  '169.254.42.42/32',
  '100.100.100.200/32',
  '168.63.129.16/32',
  '192.0.0.192/32',
  'fd00:ec2::/32',
  'fd20:ce::/32',
  'fd00:c1::/32',
  'fd00:42::/32',
];

/**
 * Behind a NAT64 (RFC 6052), an IPv4 host has an IPv6 address with this prefix. The last four bytes of that address are the IPv4 address.
 */
const NAT64 = '64:ff9b::';
const NAT64_BITS = 96;

/**
 * Addresses that no server of users has: multicast groups, reserved addresses and site-local addresses (RFC 3879). The list also contains
 * unusual IPv6 addresses that embed an IPv4 address: IPv4-compatible (RFC 4291), IPv4-translated (RFC 2765), local-use NAT64 (RFC 8215),
 * Teredo (RFC 4380) and 6to4 (RFC 7526) addresses. IPv4-mapped addresses are not in the list, because the IPv4 addresses
 * that they contain are checked.
 */
const SPECIAL = [
  '192.0.0.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '::/96',
  '::ffff:0:0:0/96',
  '64:ff9b:1::/48',
  '2001::/32',
  '2002::/16',
  'fec0::/10',
  'ff00::/8',
];

/** Private networks (RFC 1918 and 4193), shared addresses of providers (RFC 6598), and addresses for measurements (RFC 2544). */
const PRIVATE = [
  '10.0.0.0/8',
  '172.16.0.0/12',
  '192.168.0.0/16',
  '100.64.0.0/10',
  '198.18.0.0/15',
  'fc00::/7',
];

/** Time limit of a look-up behind a proxy. A host there often has no DNS server that answers, and its proxy looks the name up anyway. */
const LOOKUP_MILLISECONDS = 5_000;
/**
 * Names that have a meaning only in the network of whoever looks them up: names without a dot, and domains for private use (RFC 6762 and its
 * appendix G, and Services of Kubernetes). Behind a proxy, such a name could lead to a service of the proxy's network.
 */
const LOCAL_NAME =
  /^[^.]+\.?$|\.(?:localhost|local|localdomain|internal|intranet|lan|home|corp|private|svc)\.?$/i;

export class Addresses {
  readonly #rules: AddressRules;
  readonly #cluster: BlockList;
  readonly #namedHosts: ReadonlySet<string>;

  constructor(rules: AddressRules) {
    this.#rules = rules;
    this.#cluster = listOf(rules.clusterCIDRs ?? []);
    this.#namedHosts = new Set(rules.namedHosts);
  }

  /**
   * Returns a connector for undici. The connector looks up a host name only once, and uses only the addresses that it checked, because a
   * second look-up could return other addresses. If the rules refuse an address, the connection fails with an AddressError before anything
   * is sent.
   */
  connector(options: buildConnector.BuildOptions): buildConnector.connector {
    const connectAnywhere = buildConnector(options);
    const connect = buildConnector({ ...options, lookup: this.#lookup });
    return (target, callback) => {
      if (this.#isNamed(target)) {
        connectAnywhere(target, callback);
        return;
      }
      // The look-up of a host name checks the addresses that it finds. undici connects to an IP address without a look-up, so the address
      // is checked here.
      const address = target.hostname.replace(/^\[|\]$/g, '');
      const refusal = isIP(address) === 0 ? undefined : this.refusal(address);
      if (refusal === undefined) {
        connect(target, callback);
      } else {
        callback(new AddressError(target.hostname, `${address} is ${refusal}`), null);
      }
    };
  }

  /**
   * Checks the target of a connection through a proxy. The proxy looks the name up again, and may find other addresses. So this check only
   * refuses what this host can see: IP addresses, names that lead to refused addresses, and names of local networks that it cannot look up.
   *
   * @throws AddressError when this host must not connect to the target.
   */
  async checkBehindProxy(
    target: Pick<buildConnector.Options, 'hostname' | 'port' | 'protocol'>,
  ): Promise<void> {
    const { hostname } = target;
    if (this.#isNamed(target)) {
      return;
    }
    const host = hostname.replace(/^\[|\]$/g, '');
    const addresses = isIP(host) === 0 ? await addressesOf(host) : [host];
    if (addresses.length === 0 && LOCAL_NAME.test(host)) {
      const { advice } = this.#rules;
      throw new AddressError(hostname, `${hostname} is a name of a local network; ${advice}`);
    }
    for (const address of addresses) {
      const refusal = this.refusal(address);
      if (refusal !== undefined) {
        throw new AddressError(hostname, `${hostname} leads to ${address}, ${refusal}`);
      }
    }
  }

  #isNamed(target: Pick<buildConnector.Options, 'hostname' | 'port' | 'protocol'>): boolean {
    return spellingsOf(target).some((host) => this.#namedHosts.has(host));
  }

  /**
   * Returns the reason why this host must not connect to `address`, or undefined if the address is allowed. The reason is text such as "a
   * reserved address", which follows the address in a message.
   */
  refusal(address: string): string | undefined {
    const [plain = '', zone] = address.split('%');
    const family = isIP(plain);
    if (family === 0) {
      return 'not an IP address';
    }
    const kind = this.#kindOf(
      (list) => list.check(plain, family === 6 ? 'ipv6' : 'ipv4'),
      zone !== undefined,
    );
    return kind && `${kind}; ${this.#rules.advice}`;
  }

  #kindOf(isIn: (list: BlockList) => boolean, hasZone: boolean): string | undefined {
    if (isIn(LISTS.metadata)) {
      return 'a metadata address of a cloud';
    }
    if (hasZone || isIn(LISTS.local) || isIn(this.#own())) {
      return this.#rules.allowsLocal === true ? undefined : 'an address of this host or a link-local address';
    }
    if (isIn(this.#cluster)) {
      return 'an address of the cluster (clusterCIDRs)';
    }
    if (this.#rules.refusesPrivate === true && isIn(LISTS.private)) {
      return 'an address of a private network';
    }
    return isIn(LISTS.special) ? 'a reserved address' : undefined;
  }

  /** Returns the current addresses of the host. The function reads the addresses at each call, because they can change. */
  #own(): BlockList {
    const { ownAddresses = [] } = this.#rules;
    const interfaces = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
    const addresses = [...ownAddresses, ...interfaces.map(({ address }) => address.split('%')[0] ?? '')];
    return listOf(addresses.map((address) => `${address}/${isIP(address) === 6 ? 128 : 32}`));
  }

  readonly #lookup: LookupFunction = (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, addresses) => {
      if (error !== null) {
        callback(error, []);
        return;
      }
      for (const { address } of addresses) {
        const refusal = this.refusal(address);
        if (refusal === undefined) {
          continue;
        }
        callback(new AddressError(hostname, `${hostname} resolves to ${address}, ${refusal}`), []);
        return;
      }
      if (options.all === true) {
        callback(null, addresses);
      } else {
        callback(null, addresses[0]?.address ?? '', addresses[0]?.family ?? 4);
      }
    });
  };
}

/** Returns the addresses of a host. The list is empty if this host cannot look the name up, which is usual behind a proxy. */
async function addressesOf(host: string): Promise<string[]> {
  const done = new AbortController();
  const late = rest(LOOKUP_MILLISECONDS, done.signal).then(() => undefined);
  const found = await Promise.race([undefinedIf(isOfSystem, lookUp(host, { all: true })), late]);
  done.abort();
  return (found ?? []).map(({ address }) => address);
}

/** Returns the spellings of a server's host in the configuration. The default port of the scheme can be in it or left out. */
function spellingsOf({
  protocol,
  hostname,
  port,
}: Pick<buildConnector.Options, 'hostname' | 'port' | 'protocol'>): string[] {
  const standard = protocol === 'https:' ? '443' : '80';
  return port === '' ? [hostname, `${hostname}:${standard}`] : [`${hostname}:${port}`];
}

const LISTS = {
  metadata: listOf(METADATA),
  local: listOf(LOCAL),
  private: listOf(PRIVATE),
  special: listOf(SPECIAL),
};

/** Returns a list of the networks. Behind a NAT64, an IPv4 network also has IPv6 addresses. The list contains these addresses too. */
function listOf(networks: readonly string[]): BlockList {
  const list = new BlockList();
  for (const network of networks) {
    const [address = '', bits] = network.split('/');
    if (isIP(address) === 4) {
      list.addSubnet(address, Number(bits), 'ipv4');
      list.addSubnet(`${NAT64}${address}`, NAT64_BITS + Number(bits), 'ipv6');
    } else {
      list.addSubnet(address, Number(bits), 'ipv6');
    }
  }
  return list;
}

/**
 * Returns a connector for undici. It checks each target by the rules of `addresses` before the proxy hears of it. `tls` has the TLS settings
 * of the servers.
 */
export function proxiedConnector(
  proxy: Proxy,
  addresses: Addresses,
  tls: ConnectOptions,
): buildConnector.connector {
  const throughTunnel = tunnelConnector(proxy, tls);
  const toProxy = buildConnector({ timeout: tls.timeout, allowH2: false });
  const { protocol, hostname, host, port } = proxy.origin;
  const connect = async (
    target: buildConnector.Options,
    callback: buildConnector.Callback,
  ): Promise<void> => {
    try {
      await addresses.checkBehindProxy(target);
    } catch (error) {
      callback(error as Error, null);
      return;
    }
    if (target.protocol === 'https:') {
      throughTunnel(target, callback);
    } else {
      toProxy({ protocol, hostname, host, port }, callback);
    }
  };
  return (target, callback) => void connect(target, callback);
}
