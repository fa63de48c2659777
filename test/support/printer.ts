/** A disk whose guest does nothing but print on its serial console, as fast as it can. */
import { writeFile } from 'node:fs/promises';

const LINE_BYTES = 64;
const SECTOR_BYTES = 512;
/** A BIOS starts no disk smaller than one cylinder. */
const DISK_BYTES = 4 * 1024 * 1024;
/** Where a BIOS puts the sector. */
const ORIGIN = 0x7c00;

/**
 *         cli; xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax; mov sp, 0x7c00; cld
 *         mov dx, 0x3fa; mov al, 7; out dx, al          ; 16 bytes fit into the port at once
 *         mov ebp, PIECES
 * piece:  mov si, TEXT; mov bx, 4
 * burst:  mov dx, 0x3fd
 * wait:   in al, dx; test al, 0x20; jz wait             ; until the port has sent what it has
 *         mov dx, 0x3f8; mov cx, 16; rep outsb
 *         dec bx; jnz burst
 *         mov di, COUNTER                               ; the last of nine decimal digits
 * count:  inc byte [di]; cmp byte [di], '9'; jbe next
 *         mov byte [di], '0'; dec di; jmp count
 * next:   dec ebp; jnz piece
 *         mov si, END; mov cx, 8; mov dx, 0x3f8; rep outsb
 *         mov dx, 0x604; mov ax, POWER; out dx, ax      ; ACPI: 0x2000 powers off, 0 does nothing
 * stop:   hlt; jmp stop
 */
const CODE = [
  'fa31c08ed88ec08ed0bc007cfc',
  'bafa03b007ee',
  '66bdPIECES',
  'beTEXTbb0400',
  'bafd03',
  'eca82074fb',
  'baf803b91000f36e',
  '4b75ed',
  'bfCOUNTER',
  'fe05803d397606',
  'c605304febf3',
  '664d75d3',
  'beENDxb90800baf803f36e',
  'ba0406b8POWERef',
  'f4ebfd',
].join('');

export interface Printing {
  /** How many pieces of 64 bytes. */
  pieces: number;
  /** `lines`: each piece is a line that begins with its number, nine digits from 0. `line ends`: each piece is 64 of them. */
  what: 'lines' | 'line ends';
  /** After its last line, `the end`. */
  end: 'halt' | 'power off';
}

/** What {@link Printing} of lines prints for its line `number`. */
export function printedLine(number: number): string {
  return `${String(number).padStart(9, '0')} ${'x'.repeat(LINE_BYTES - 11)}`;
}

/** Writes such a disk, a raw one. */
export async function makePrinter(path: string, { pieces, what, end }: Printing): Promise<void> {
  const code = (values: Record<string, Buffer>): Buffer => {
    let hex = CODE;
    for (const [name, value] of Object.entries(values)) {
      hex = hex.replace(name, value.toString('hex'));
    }
    return Buffer.from(hex, 'hex');
  };
  const word = (value: number): Buffer => Buffer.from(Uint16Array.of(value).buffer);
  const values = (start: number): Record<string, Buffer> => ({
    PIECES: Buffer.from(Uint32Array.of(pieces).buffer),
    TEXT: word(ORIGIN + start),
    // Line ends stay what they are: their counter is beside the text.
    COUNTER: word(ORIGIN + start + (what === 'lines' ? 8 : LINE_BYTES + 8)),
    ENDx: word(ORIGIN + start + LINE_BYTES + 9),
    POWER: word(end === 'power off' ? 0x2000 : 0),
  });
  const { length } = code(values(0));
  const text = what === 'lines' ? `${printedLine(0)}\n` : '\n'.repeat(LINE_BYTES);
  const sector = Buffer.alloc(SECTOR_BYTES);
  Buffer.concat([code(values(length)), Buffer.from(`${text}000000000the end\n`)]).copy(sector);
  sector.writeUInt16LE(0xaa55, SECTOR_BYTES - 2);
  await writeFile(path, Buffer.concat([sector, Buffer.alloc(DISK_BYTES - SECTOR_BYTES)]));
}
