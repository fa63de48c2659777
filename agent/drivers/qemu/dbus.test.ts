import { expect, it } from 'vitest';
import {
  DBusFormatError,
  encodeCall,
  MESSAGE_LIMIT_BYTES,
  MessageSplitter,
  readBody,
  DBusWriter,
} from './dbus.ts';

const SIZE = { path: '/a', interface: 'b', member: 'c', type: 'qqiiuu', values: [300, 170, 0, 0, 1280, 720] };
/** Bytes of the call {@link SIZE} with the serial number 9, as another program wrote them. */
const SIZE_BYTES = [
  '6c01000114000000090000003c000000',
  '01016f00020000002f61000000000000',
  '02017300010000006200000000000000',
  '03017300010000006300000000000000',
  '08016700067171696975750000000000',
  '2c01aa00000000000000000000050000d0020000',
].join('');

/** Returns the value `a{sv}` with a text, a number and a list. */
function properties(): Buffer {
  const body = new DBusWriter();
  const name = (text: string) => {
    body.align(8);
    body.value('s', text);
  };
  body.value('u', 0);
  name('Label');
  body.value('g', 's');
  body.value('s', 'x');
  name('Width');
  body.value('g', 'u');
  body.value('u', 1280);
  name('Kinds');
  body.value('g', 'as');
  body.align(4);
  body.value('u', 6);
  body.value('s', 'y');
  const bytes = body.bytes();
  // The length of an array does not include the 8 bytes before its first pair.
  bytes.writeUInt32LE(bytes.length - 8);
  return bytes;
}

it('writes calls as D-Bus demands', () => {
  expect(encodeCall(9, SIZE).toString('hex')).toBe(SIZE_BYTES);
});

it('reads messages that arrive in pieces', () => {
  const bytes = Buffer.from(SIZE_BYTES + SIZE_BYTES, 'hex');
  const splitter = new MessageSplitter();
  const messages = [...bytes].flatMap((byte) => splitter.push(Buffer.from([byte])));
  expect(messages).toHaveLength(2);
  expect(messages[1]).toMatchObject({ type: 1, path: '/a', interface: 'b', member: 'c', error: undefined });
  expect(messages.map(readBody)).toEqual([SIZE.values, SIZE.values]);
});

it('reads properties with values of any type', () => {
  expect(readBody({ signature: 'a{sv}', body: properties() })).toEqual([
    [
      ['Label', 'x'],
      ['Width', 1280],
      ['Kinds', ['y']],
    ],
  ]);
});

it('refuses a stream that is not D-Bus, and a message that is too long', () => {
  expect(() => new MessageSplitter().push(Buffer.alloc(16))).toThrow(DBusFormatError);
  const long = Buffer.from(SIZE_BYTES, 'hex');
  long.writeUInt32LE(MESSAGE_LIMIT_BYTES, 4);
  expect(() => new MessageSplitter().push(long)).toThrow('are allowed');
  long.writeUInt32LE(0xffff_ffff, 12);
  expect(() => new MessageSplitter().push(long)).toThrow('are allowed');
});

it.each([
  ['a text that is longer than the message', 's', 'ffffff7f78'],
  ['an array that is longer than the message', 'au', '0800000001000000'],
  ['an array that ends within an item', 'au', '060000000100000002000000'],
  ['an array of values without bytes', 'a()', '0100000000000000'],
  ['an array of values whose values have no bytes', 'a(({}))', '0800000000000000'],
  ['an empty structure', '()', '00'],
  ['an unknown type', 'z', '00'],
  ['a type without an end', 'a', '00000000'],
  ['a structure without an end', '(u', '00000000'],
  ['a structure without a beginning', 'u)', '00000000'],
  ['a value of two types', 'v', '0275750000000000'],
  ['a value of no type', 'v', '0000'],
])('refuses %s', (_, signature, hex) => {
  expect(() => readBody({ signature, body: Buffer.from(hex, 'hex') })).toThrow(DBusFormatError);
});

it('refuses values that are nested too deeply', () => {
  const body = Buffer.from('017600'.repeat(100), 'hex');
  expect(() => readBody({ signature: 'v', body })).toThrow('nested too deeply');
});

it('gives no error but its own for any damaged message', () => {
  const whole = Buffer.concat([Buffer.from(SIZE_BYTES, 'hex'), Buffer.alloc(64)]);
  for (let at = 0; at < whole.length; at += 1) {
    for (const byte of [0, 1, 0x28, 0x61, 0x76, 0xff]) {
      const damaged = Buffer.from(whole);
      damaged[at] = byte;
      try {
        new MessageSplitter().push(damaged).forEach(readBody);
      } catch (error) {
        expect(error).toBeInstanceOf(DBusFormatError);
      }
    }
  }
});
