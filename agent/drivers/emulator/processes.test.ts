import { describe, expect, it } from 'vitest';
import { chooseLines } from './processes.ts';

describe('the last words of an emulator', () => {
  it('are its errors, also if the kernel of the guest wrote after them', () => {
    const output = [
      'INFO    | Android emulator version 36.1.9.0',
      'ERROR   | Cannot open the disk',
      '[    0.5] Kernel panic - not syncing: no root',
      ...Array.from({ length: 100 }, (_, line) => `[    1.0] line ${line} of the kernel`),
      'FATAL   | The end',
    ].join('\r\n');
    expect(chooseLines(output)).toBe(
      'ERROR   | Cannot open the disk\n[    0.5] Kernel panic - not syncing: no root\nFATAL   | The end',
    );
  });

  it('are the last lines if there is no error', () => {
    expect(chooseLines('one\n\ntwo\nthree\nfour\nfive\n')).toBe('two\nthree\nfour\nfive');
    expect(chooseLines('')).toBe('');
  });

  it('leave out ADB keys and control characters, and are short', () => {
    const key = `QAAAA${'A'.repeat(700)}= user@host`;
    const output = [`FATAL   | ${key}`, 'ERROR   | qemu.adb.pubkey=abc', '-----BEGIN PRIVATE KEY-----'];
    expect(chooseLines([...output, 'FATAL   | \u001b[2Jred\u0007'].join('\n'))).toBe('FATAL   |  [2Jred');
    expect(chooseLines(`FATAL   | ${'long '.repeat(10_000)}`).length).toBeLessThanOrEqual(2048);
    expect(chooseLines(`FATAL   | ${'long '.repeat(1_000)} adbkey`), 'only the beginning counts').toMatch(
      /long/,
    );
    expect(chooseLines('FATAL   | again\n'.repeat(100)).split('\n')).toHaveLength(12);
  });
});
