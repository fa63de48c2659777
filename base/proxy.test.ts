import { describe, expect, it } from 'vitest';
import { type ProxyEnvironment, Proxies } from './proxy.ts';

/** Returns the address of the proxy for a URL, without credentials; undefined if the server is reached directly. */
function chosen(environment: ProxyEnvironment, url: string): string | undefined {
  return new Proxies(environment).proxyFor(new URL(url))?.origin.origin;
}

describe('the proxy of a server', () => {
  const BOTH = { HTTPS_PROXY: 'http://secure.example:3128', HTTP_PROXY: 'http://plain.example:3128' };

  it.each<[string, ProxyEnvironment, string, string | undefined]>([
    ['comes from HTTPS_PROXY for https', BOTH, 'https://a.example/', 'http://secure.example:3128'],
    ['comes from HTTP_PROXY for http', BOTH, 'http://a.example/', 'http://plain.example:3128'],
    [
      'is none for https if only HTTP_PROXY is set',
      { HTTP_PROXY: 'http://p' },
      'https://a.example/',
      undefined,
    ],
    ['can be in small letters', { https_proxy: 'http://p:1' }, 'https://a.example/', 'http://p:1'],
    [
      'is that in capital letters',
      { https_proxy: 'http://p:1', HTTPS_PROXY: 'http://P:2' },
      'https://a/',
      'http://p:2',
    ],
    [
      'is none if the variable is empty',
      { HTTPS_PROXY: '', https_proxy: '' },
      'https://a.example/',
      undefined,
    ],
    ['can have no scheme', { HTTPS_PROXY: 'proxy.example:3128' }, 'https://a/', 'http://proxy.example:3128'],
    [
      'can be spoken to with TLS',
      { HTTPS_PROXY: 'https://proxy.example' },
      'https://a/',
      'https://proxy.example',
    ],
    ['is none for localhost', BOTH, 'https://localhost:5000/', undefined],
    ['is none for a loopback address', BOTH, 'https://127.1.2.3:5000/', undefined],
    ['is none for the loopback address of IPv6', BOTH, 'http://[::1]:5000/', undefined],
  ])('%s', (_, environment, url, proxy) => {
    expect(chosen(environment, url)).toBe(proxy);
  });
});

describe('NO_PROXY', () => {
  it.each([
    ['*', 'https://a.example/', true],
    ['a.example', 'https://a.example/', true],
    ['a.example', 'https://A.EXAMPLE:8443/', true],
    ['a.example', 'https://x.a.example/', true],
    ['a.example', 'https://xa.example/', false],
    ['.a.example', 'https://x.a.example/', true],
    ['.a.example', 'https://a.example/', false],
    ['*.a.example', 'https://x.a.example/', true],
    ['*.a.example', 'https://a.example/', false],
    [' b.example , a.example,', 'https://a.example/', true],
    ['a.example:443', 'https://a.example/', true],
    ['a.example:443', 'https://a.example:8443/', false],
    ['a.example:80', 'http://a.example/', true],
    ['10.0.0.0/8', 'https://10.1.2.3/', true],
    ['10.0.0.0/8', 'https://11.1.2.3/', false],
    ['10.0.0.0/8', 'https://name-in-10.example/', false],
    ['10.0.0.0/33', 'https://10.1.2.3/', false],
    ['10.1.2.3', 'https://10.1.2.3:5000/', true],
    ['10.1.2.3:5000', 'https://10.1.2.3:5000/', true],
    ['10.1.2.3:5000', 'https://10.1.2.3/', false],
    ['fd00::/8', 'https://[fd12::1]/', true],
    ['fd12::1', 'https://[fd12:0::1]/', true],
    ['[fd12::1]:5000', 'https://[fd12::1]:5000/', true],
    ['[fd12::1]:5000', 'https://[fd12::1]/', false],
    ['', 'https://a.example/', false],
  ])('%j: %s is reached directly: %s', (text, url, isDirect) => {
    const proxy = 'http://proxy.example:3128';
    const environment = { HTTPS_PROXY: proxy, HTTP_PROXY: proxy };
    for (const name of ['NO_PROXY', 'no_proxy']) {
      expect(chosen({ ...environment, [name]: text }, url)).toBe(isDirect ? undefined : proxy);
    }
  });
});

describe('credentials of a proxy', () => {
  const environment = { HTTPS_PROXY: 'http://user:p%40ss%zz@proxy.example:3128' };

  it('go into a header, and nowhere else', () => {
    const proxies = new Proxies(environment);
    const proxy = proxies.proxyFor(new URL('https://a.example'));
    expect(proxy?.authorization).toBe(`Basic ${Buffer.from('user:p%40ss%zz').toString('base64')}`);
    expect(`${proxy?.origin.href} ${proxies.describe().join(' ')}`).toBe(
      'http://proxy.example:3128/ http://proxy.example:3128',
    );
  });

  it('can have percent signs for special characters', () => {
    const proxies = new Proxies({ HTTPS_PROXY: 'http://user:p%40ss%3A@proxy.example' });
    const { authorization = '' } = proxies.proxyFor(new URL('https://a.example')) ?? {};
    expect(Buffer.from(authorization.replace('Basic ', ''), 'base64').toString()).toBe('user:p@ss:');
  });

  it.each([
    'socks5://user:secret@proxy.example:1080',
    'http://user:secret@',
    'user:secret@proxy.example:port',
  ])('are not in the message about a value that is no HTTP proxy: %s', (value) => {
    expect(() => new Proxies({ HTTPS_PROXY: value })).toThrow(
      /^HTTPS_PROXY is not the address of an HTTP proxy\. Use http:\/\/HOST:PORT or https:\/\/HOST:PORT$/,
    );
  });
});
