/**
 * Chooses the proxy of a request from the environment, by the rules of Go's programs, so that the same variables work for Kubernetes and for
 * Berth. HTTPS_PROXY is for https, HTTP_PROXY for http. NO_PROXY names the servers that are reached directly. Each variable can also be
 * written in small letters. If both are set, the one in capital letters counts.
 */
import { BlockList, isIP } from 'node:net';

export interface Proxy {
  /** Scheme, name and port of the proxy, without its credentials. */
  origin: URL;
  /** Address with the credentials. It is a secret. */
  href: string;
  /** Value of the header `Proxy-Authorization`. It is a secret. */
  authorization: string | undefined;
}

/** Variables of a process. */
export type ProxyEnvironment = Readonly<Record<string, string | undefined>>;

/** Whether a server is reached directly. The host is in small letters, without the brackets of an IPv6 address. */
type Exception = (host: string, port: string) => boolean;

const DEFAULT_PORTS: Readonly<Record<string, string>> = { 'http:': '80', 'https:': '443' };
const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

export class Proxies {
  readonly #proxies: Readonly<Record<string, Proxy | undefined>>;
  readonly #exceptions: readonly Exception[];

  /** @throws Error when a variable names no HTTP proxy. Its message does not show the value, because the value can contain a password. */
  constructor(environment: ProxyEnvironment) {
    this.#proxies = {
      'https:': proxyIn(environment, 'HTTPS_PROXY'),
      'http:': proxyIn(environment, 'HTTP_PROXY'),
    };
    this.#exceptions = (valueOf(environment, 'NO_PROXY') ?? '').split(',').flatMap(parseExceptions);
  }

  /** Returns the proxy for requests to a server, or undefined if the server is reached directly. */
  proxyFor({ protocol, hostname, port }: Pick<URL, 'protocol' | 'hostname' | 'port'>): Proxy | undefined {
    const host = hostname.toLowerCase().replace(/^\[|\]$/g, '');
    // A proxy would reach itself under these names.
    if (host === 'localhost' || isIn(LOOPBACK, host)) {
      return undefined;
    }
    const wanted = port === '' ? (DEFAULT_PORTS[protocol] ?? '') : port;
    return this.#exceptions.some((isDirect) => isDirect(host, wanted)) ? undefined : this.#proxies[protocol];
  }

  /** Returns the addresses of the proxies without credentials, for the log. The list is empty if there is no proxy. */
  describe(): string[] {
    return Object.values(this.#proxies).flatMap((proxy) =>
      proxy === undefined ? [] : [proxy.origin.origin],
    );
  }
}

function valueOf(environment: ProxyEnvironment, name: string): string | undefined {
  return environment[name] || environment[name.toLowerCase()] || undefined;
}

function proxyIn(environment: ProxyEnvironment, name: string): Proxy | undefined {
  const text = valueOf(environment, name)?.trim();
  if (text === undefined) {
    return undefined;
  }
  const url = URL.parse(text.includes('://') ? text : `http://${text}`);
  if (url === null || (url.protocol !== 'http:' && url.protocol !== 'https:') || url.hostname === '') {
    throw new Error(`${name} is not the address of an HTTP proxy. Use http://HOST:PORT or https://HOST:PORT`);
  }
  const credentials = [url.username, url.password].map(decode).join(':');
  return {
    origin: new URL(url.origin),
    href: url.href,
    authorization: credentials === ':' ? undefined : `Basic ${Buffer.from(credentials).toString('base64')}`,
  };
}

/** Decodes the percent signs of a part of a URL. A part with a wrong percent sign stays as it is. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Reads one item of NO_PROXY: `*`, a network, an address or a domain. Addresses and domains can have a port. */
function parseExceptions(item: string): Exception[] {
  const text = item.trim().toLowerCase();
  if (text === '') {
    return [];
  }
  if (text === '*') {
    return [() => true];
  }
  const network = parseNetwork(text);
  if (network !== undefined) {
    return [(host) => isIn(network, host)];
  }
  const { name, port } = isIP(text) === 0 ? splitPort(text) : { name: text, port: undefined };
  const isOfPort = (wanted: string): boolean => port === undefined || port === wanted;
  if (isIP(name) !== 0) {
    const address = parseNetwork(`${name}/${isIP(name) === 4 ? 32 : 128}`) ?? new BlockList();
    return [(host, wanted) => isIn(address, host) && isOfPort(wanted)];
  }
  // The domain itself is only included if the item has no dot before it.
  const domain = name.replace(/^\*\./, '.');
  const below = domain.startsWith('.') ? domain : `.${domain}`;
  return [(host, wanted) => (host === domain || host.endsWith(below)) && isOfPort(wanted)];
}

function splitPort(text: string): { name: string; port: string | undefined } {
  const [, bracketed, plain = '', port] = /^(?:\[(.*)\]|(.*?))(?::(\d+))?$/.exec(text) ?? [];
  return { name: bracketed ?? plain, port };
}

function parseNetwork(text: string): BlockList | undefined {
  const [address = '', bits = ''] = text.split('/');
  const family = isIP(address);
  if (family === 0 || !/^\d{1,3}$/.test(bits) || Number(bits) > (family === 4 ? 32 : 128)) {
    return undefined;
  }
  const list = new BlockList();
  list.addSubnet(address, Number(bits), family === 4 ? 'ipv4' : 'ipv6');
  return list;
}

function isIn(list: BlockList, host: string): boolean {
  const family = isIP(host);
  return family !== 0 && list.check(host, family === 4 ? 'ipv4' : 'ipv6');
}
