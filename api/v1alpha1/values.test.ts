import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parsePort, portName, portsSchema } from './ports.ts';
import { formatQuantity, formatSize, parseQuantity } from './quantity.ts';
import { memoryQuantity } from './schema.ts';
import { vmShape } from './template.ts';

const port = fc.integer({ min: 1, max: 65_535 });

describe('parsePort', () => {
  it('reads every reservation, in upper or lower case, with TCP as the default', () => {
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
    ':',
    '022:22',
    '22:022',
    '22:22/',
    '22:22/sctp',
    ' 22:22',
    '22:22\n',
    '2 2:22',
    '1e3:22',
  ])('refuses %j', (text) => {
    expect(() => parsePort(text)).toThrow('[<NODE_PORT>]:<VM_PORT>');
  });

  it('names a reservation by the key that no two may share', () => {
    expect(portName({ hostPort: 8822, protocol: 'UDP' })).toBe('8822-udp');
    expect(portsSchema.safeParse(['22:1', '22:2/udp']).success).toBe(true);
    expect(portsSchema.safeParse(['22:1', '22:2/TCP']).success).toBe(false);
  });

  it('leaves the node port to the host', () => {
    expect(parsePort(':22')).toEqual({ hostPort: undefined, guestPort: 22, protocol: 'TCP' });
    expect(parsePort(':53/Udp')).toEqual({ hostPort: undefined, guestPort: 53, protocol: 'UDP' });
    expect(portsSchema.safeParse([':22', ':23', ':22/udp', '22:22']).success).toBe(true);
    expect(portsSchema.safeParse([':22', ':22/TCP']).success).toBe(false);
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
    ['4e009', 4_000_000_000n],
    ['4E+0000000000009', 4_000_000_000n],
    ['4e4294967305', 4_000_000_000n],
    ['0000000000000000000000000004Gi', 4_294_967_296n],
    ['4.00000000000000000000000000000e9', 4_000_000_000n],
    [10_737_418_240, 10_737_418_240n],
  ])('%s is %i bytes', ([text, bytes]) => {
    expect(parseQuantity(text)).toBe(bytes);
  });

  it.for(['', 'Gi', '1gi', '1 Gi', '1GB', '0x10', '1e', '--1', '1.2.3', 'NaN', '1e999', '1e-999'])(
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

  it('of memory keep to their bounds', () => {
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

describe('fields of a display', () => {
  it.each([240, 320] as const)('keep to their bounds, also with %i DPI allowed', (dpiMaximum) => {
    const bounds = { displayWidth: [320, 3840], displayHeight: [480, 2160], displayDPI: [60, dpiMaximum] };
    const shape = vmShape(dpiMaximum);
    for (const [name, [minimum = 0, maximum = 0]] of Object.entries(bounds)) {
      const accepts = (value: number) => shape[name as keyof typeof bounds].safeParse(value).success;
      expect([minimum - 1, minimum, maximum, maximum + 1].map(accepts)).toEqual([false, true, true, false]);
    }
  });
});

it.each([
  ['256Mi', '256Mi'],
  ['0.25Gi', '256Mi'],
  [20_415_376, '19.5Mi'],
  ['120G', '111.8Gi'],
  ['1048575Ki', '1Gi'],
  ['1023.9Mi', '1023.9Mi'],
  [0, '0'],
  [undefined, undefined],
  ['much', undefined],
])('the size %s is %s for people', (quantity, text) => {
  expect(formatSize(quantity)).toBe(text);
});
