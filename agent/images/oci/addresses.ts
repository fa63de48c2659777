/**
 * Which addresses images may come from. Whoever names an image makes the host connect somewhere: never to the host's own
 * services, to a cloud's metadata or to the inside of the cluster, unless an administrator configured it.
 */
import { lookup } from 'node:dns';
import { BlockList, isIP, type LookupFunction } from 'node:net';
import { networkInterfaces } from 'node:os';
import { buildConnector } from 'undici';
import { apiHost } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';

export interface AddressRules {
  /** Also from addresses of this host itself and of its link, such as a mirror beside the agent. */
  allowLoopback: boolean;
  /** Networks of the cluster's Pods, Services and Nodes. */
  clusterCIDRs?: readonly string[];
  /** Addresses of this host that none of its interfaces has, since they are translated on the way here. */
  ownAddresses?: readonly string[];
  /** Servers that may be at any address, each as in references: `registry.example:5000`. */
  registries?: readonly { host: string }[];
}

/** This host and its link. */
const LOCAL = ['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '::/128', '::1/128', 'fe80::/10'];

/**
 * Where clouds answer to a machine as to itself: Amazon (also containers' credentials), Google, Azure's WireServer, Alibaba,
 * Oracle, Tencent, Scaleway. From their documentation of instance metadata.
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

/** The IPv6 addresses of IPv4 hosts behind a NAT64 (RFC 6052): the last four bytes are the IPv4 address. */
const NAT64 = '64:ff9b::';
const NAT64_BITS = 96;

/**
 * Addresses that belong to no server: groups, reserved ones, and IPv6 addresses that hold an IPv4 address in ways nobody
 * serves images by. Those are IPv4-compatible (RFC 4291), IPv4-translated (RFC 2765), a network's own NAT64 (RFC 8215), Teredo
 * (RFC 4380), 6to4 (RFC 7526) and site-local (RFC 3879) addresses. An IPv4-mapped address is judged as the IPv4 address.
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

const OUTSIDE = 'only a server named in images.registries of the agent may be there';

export class Addresses {
  readonly #rules: AddressRules;
  readonly #cluster: BlockList;
  /** Hosts as they stand in URLs. */
  readonly #namedHosts: ReadonlySet<string>;

  constructor(rules: AddressRules) {
    this.#rules = rules;
    this.#cluster = listOf(rules.clusterCIDRs ?? []);
    this.#namedHosts = new Set(rules.registries?.map(({ host }) => new URL(`https://${apiHost(host)}`).host));
  }

  /**
   * How undici connects. Names are looked up once, and the addresses that were checked are the ones connected to: a second
   * look-up could answer otherwise. It fails with a ReasonedError before anything is sent.
   */
  connector(options: buildConnector.BuildOptions): buildConnector.connector {
    const connectAnywhere = buildConnector(options);
    const connect = buildConnector({ ...options, lookup: this.#lookup });
    return (target, callback) => {
      if (target.host !== undefined && this.#namedHosts.has(target.host)) {
        connectAnywhere(target, callback);
        return;
      }
      // Addresses are connected to without a look-up.
      const address = target.hostname.replace(/^\[|\]$/g, '');
      const refusal = isIP(address) === 0 ? undefined : this.refusal(address);
      if (refusal === undefined) {
        connect(target, callback);
      } else {
        callback(new ReasonedError('ImageFetchFailed', `${address} is ${refusal}`), null);
      }
    };
  }

  /** Why nothing may be fetched from the address, in words that follow "is"; undefined for one that is open. */
  refusal(address: string): string | undefined {
    const [plain = '', zone] = address.split('%');
    const family = isIP(plain);
    if (family === 0) {
      return 'no address';
    }
    const isIn = (list: BlockList): boolean => list.check(plain, family === 6 ? 'ipv6' : 'ipv4');
    if (isIn(LISTS.metadata)) {
      return `an address of a cloud's metadata: ${OUTSIDE}`;
    }
    if (zone !== undefined || isIn(LISTS.local) || isIn(this.#own())) {
      return this.#rules.allowLoopback ? undefined : LOCAL_WORDS;
    }
    if (isIn(this.#cluster)) {
      return `an address of the cluster (clusterCIDRs): ${OUTSIDE}`;
    }
    return isIn(LISTS.special) ? `no address of a server: ${OUTSIDE}` : undefined;
  }

  /** The host's addresses of this moment: interfaces come and go. */
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
        callback(new ReasonedError('ImageFetchFailed', `${hostname} is ${address}, ${refusal}`), []);
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

const LOCAL_WORDS =
  'an address of this host or its link; images are not fetched from there unless the agent’s configuration allows it (images.allowLoopbackHttp, or a server named in images.registries)';

const LISTS = { metadata: listOf(METADATA), local: listOf(LOCAL), special: listOf(SPECIAL) };

/** A list of networks. IPv4 networks are listed with their addresses behind a NAT64, too. */
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
