import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ConsoleRecord, ConsoleText } from './records.ts';

const TIME = '2026-01-01T00:00:00.000Z';
const LATER = '2026-01-01T00:01:00.000Z';

function piece(text: string, time = TIME): ConsoleRecord {
  return { time, ended: false, text };
}

function end(text: string, time = TIME): ConsoleRecord {
  return { time, ended: true, text };
}

describe('a line that stands still', () => {
  it('is ended for its reader, and its rest is a line of its own', () => {
    const text = new ConsoleText({});
    expect(text.add([end('boot'), piece('login: ')])).toBe('boot\nlogin: ');
    expect(text.isOpen).toBe(true);
    expect(text.endLine()).toBe('\n');
    expect(text.isOpen).toBe(false);
    expect(text.add([end('root'), end(''), end('#')])).toBe('root\n\n#\n');
  });

  it('is not ended a second time by the guest, also after a carriage return', () => {
    const text = new ConsoleText({});
    text.add([piece('login: ')]);
    text.endLine();
    expect(text.add([piece(''), end(''), end('')])).toBe('\n');
  });

  it('has a time, and so has its rest', () => {
    const text = new ConsoleText({ timestamps: true });
    expect(text.add([piece('login: ')]) + text.endLine()).toBe(`${TIME} login: \n`);
    expect(text.add([end('root', LATER)])).toBe(`${LATER} root\n`);
  });

  it('counts for the limit of bytes', () => {
    const text = new ConsoleText({ limitBytes: 4 });
    expect(text.add([piece('abc')]) + text.endLine() + text.add([end('d')])).toBe('abc\n');
    expect(text.full).toBe(true);
  });

  it('that is older than the reader wants is not open', () => {
    const text = new ConsoleText({ sinceTime: new Date(LATER) });
    expect(text.add([piece('login: ')])).toBe('');
    expect(text.isOpen).toBe(false);
    expect(text.add([end('root', LATER)])).toBe('root\n');
  });
});

it('whenever lines stand still, each character comes once, and each line of the guest begins a line or follows its earlier pieces', () => {
  const record = fc.record({
    time: fc.constant(TIME),
    ended: fc.boolean(),
    text: fc.constantFrom('', 'a', 'b', 'login: '),
  });
  fc.assert(
    fc.property(
      fc.array(fc.record({ record, stands: fc.boolean() }), { maxLength: 60, size: 'max' }),
      (steps) => {
        const text = new ConsoleText({});
        let out = '';
        let breaks = 0;
        for (const { record, stands } of steps) {
          out += text.add([record]);
          if (stands && text.isOpen) {
            out += text.endLine();
            breaks += 1;
          }
        }
        const wanted = steps.map(({ record: one }) => `${one.text}${one.ended ? '\n' : ''}`).join('');
        expect(out.replaceAll('\n', '')).toBe(wanted.replaceAll('\n', ''));
        // Inserted line feeds only split lines, and neither add nor remove empty lines.
        const empty = (all: string): number => all.split('\n').filter((line) => line === '').length;
        expect(empty(out)).toBeLessThanOrEqual(empty(wanted) + 1);
        expect(out.split('\n').length - wanted.split('\n').length).toBeLessThanOrEqual(breaks);
      },
    ),
  );
});
