import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { displayBounds } from './display.ts';
import { isImageReference, normaliseImageName } from './imagename.ts';
import { parsePort, portName, portsSchema } from './ports.ts';
import { formatQuantity, memoryQuantity, parseQuantity } from './quantity.ts';

const port = fc.integer({ min: 1, max: 65_535 });

describe('parsePort', () => {
  it('reads every reservation, in any case, TCP when nothing is said', () => {
    const suffix = fc.constantFrom('', '/tcp', '/TCP', '/Tcp', '/udp', '/UDP', '/uDp');
    fc.assert(
      fc.property(port, port, suffix, (hostPort, guestPort, written) => {
        const protocol = written.toLowerCase() === '/udp' ? 'UDP' : 'TCP';
        expect(parsePort(`${hostPort}:${guestPort}${written}`)).toEqual({ hostPort, guestPort, protocol });
      }),
    );
  });

  it('refuses ports out of bounds', () => {
    const bad = fc.oneof(fc.integer({ min: 65_536 }), fc.constant(0), fc.integer({ max: -1 }));
    fc.assert(
      fc.property(bad, port, (wrong, right) => {
        expect(() => parsePort(`${wrong}:${right}`)).toThrow(RangeError);
        expect(() => parsePort(`${right}:${wrong}`)).toThrow('from 1 to 65535');
      }),
    );
  });

  it.for([
    '',
    '22',
    '22:',
    ':22',
    '022:22',
    '22:022',
    '22:22/',
    '22:22/sctp',
    ' 22:22',
    '22:22\n',
    '2 2:22',
    '1e3:22',
  ])('refuses %j', (text) => {
    expect(() => parsePort(text)).toThrow('<NODE_PORT>:<VM_PORT>');
  });

  it('names a reservation by what no two may share', () => {
    expect(portName(parsePort('8822:22/UDP'))).toBe('8822-udp');
    expect(portsSchema.safeParse(['22:1', '22:2/udp']).success).toBe(true);
    expect(portsSchema.safeParse(['22:1', '22:2/TCP']).success).toBe(false);
  });
});

describe('quantities', () => {
  it.for<[string | number, bigint]>([
    ['4Gi', 4_294_967_296n],
    ['1.5Gi', 1_610_612_736n],
    ['64Mi', 67_108_864n],
    ['100M', 100_000_000n],
    ['1k', 1000n],
    ['2e3', 2000n],
    ['1E', 10n ** 18n],
    ['1Ei', 2n ** 60n],
    ['.5Ki', 512n],
    ['1500m', 2n],
    ['-1Gi', -1_073_741_824n],
    ['0', 0n],
    [10_737_418_240, 10_737_418_240n],
  ])('%s is %i bytes', ([text, bytes]) => {
    expect(parseQuantity(text)).toBe(bytes);
  });

  it.for(['', 'Gi', '1gi', '1 Gi', '1GB', '0x10', '1e', '--1', '1.2.3', 'NaN', '1e999'])(
    '%j is none',
    (text) => {
      expect(() => parseQuantity(text)).toThrow('is not a quantity');
    },
  );

  it('are read as they were written', () => {
    fc.assert(
      fc.property(fc.bigInt({ min: 0n, max: 2n ** 62n }), (bytes) => {
        expect(parseQuantity(formatQuantity(bytes))).toBe(bytes);
      }),
    );
    expect(formatQuantity(1536n * 1024n * 1024n)).toBe('1536Mi');
  });

  it('of memory hold their bounds', () => {
    const accepted = ['64Mi', '16Ti', 67_108_864, '67108864'];
    const refused = ['63Mi', '16385Gi', '-1Gi', 67_108_863, 'much'];
    expect(accepted.map((value) => memoryQuantity().safeParse(value).success)).toEqual(
      accepted.map(() => true),
    );
    expect(refused.map((value) => memoryQuantity().safeParse(value).success)).toEqual(
      refused.map(() => false),
    );
  });
});

describe('names of images', () => {
  const digest = `sha256:${'a'.repeat(64)}`;
  it.for([
    ['ubuntu', 'docker.io/library/ubuntu:latest'],
    [' ubuntu\n', 'docker.io/library/ubuntu:latest'],
    ['ubuntu:24.04', 'docker.io/library/ubuntu:24.04'],
    ['docker.io/ubuntu', 'docker.io/library/ubuntu:latest'],
    ['index.docker.io/library/ubuntu:latest', 'docker.io/library/ubuntu:latest'],
    ['team/image', 'docker.io/team/image:latest'],
    ['ghcr.io/team/image', 'ghcr.io/team/image:latest'],
    ['GHCR.io/team/image:1', 'ghcr.io/team/image:1'],
    ['localhost/image', 'localhost/image:latest'],
    ['registry:5000/image', 'registry:5000/image:latest'],
    [`ghcr.io/team/image@${digest}`, `ghcr.io/team/image@${digest}`],
    [`ghcr.io/team/image:1@${digest}`, `ghcr.io/team/image:1@${digest}`],
  ] as const)('%j is normally %j', ([written, normal]) => {
    expect(normaliseImageName(written)).toBe(normal);
  });

  it('stay as they are once normalised', () => {
    const part = fc.stringMatching(/^[a-z0-9]{1,8}$/);
    const registry = fc.constantFrom('', 'docker.io/', 'ghcr.io/', 'localhost:5000/', 'Example.com/');
    const tag = fc.constantFrom('', ':latest', ':1.2', `@${digest}`, `:1@${digest}`);
    fc.assert(
      fc.property(registry, fc.array(part, { minLength: 1, maxLength: 3 }), tag, (host, path, end) => {
        const once = normaliseImageName(`${host}${path.join('/')}${end}`);
        expect(normaliseImageName(once)).toBe(once);
        expect(isImageReference(once)).toBe(true);
      }),
    );
  });

  it('are references when they have a slash, a colon or an at sign, else names of objects', () => {
    expect(['a/b', 'a:1', `a@${digest}`].map(isImageReference)).toEqual([true, true, true]);
    expect(['a', 'a.b', 'a-b'].map(isImageReference)).toEqual([false, false, false]);
  });
});

describe('display bounds', () => {
  it('differ in the highest DPI alone', () => {
    expect(displayBounds(320)).toEqual({ ...displayBounds(), displayDPI: { minimum: 60, maximum: 320 } });
    expect(displayBounds()).toEqual({
      displayWidth: { minimum: 320, maximum: 3840 },
      displayHeight: { minimum: 480, maximum: 2160 },
      displayDPI: { minimum: 60, maximum: 240 },
    });
  });
});
