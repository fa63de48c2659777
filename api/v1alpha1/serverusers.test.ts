import { expect, it } from 'vitest';
import { hashSync } from 'bcryptjs';
import { isServerUserName, isWholePassword, parseServerUsers, withServerUser } from './serverusers.ts';

const HASH = hashSync('secret', 4);

it('reads the lines that htpasswd writes, and leaves out comments and empty lines', () => {
  const other = HASH.replace('$2b$', '$2y$');
  const { hashes, wrong } = parseServerUsers(`# people\n\nann:${HASH}\r\n  \nbob smith:${other} \n`);
  expect([...hashes]).toEqual([
    ['ann', HASH],
    ['bob smith', other],
  ]);
  expect(wrong).toEqual([]);
});

it.each([
  ['no colon', 'ann'],
  ['no name', `:${HASH}`],
  ['a clear password', 'ann:secret'],
  ['another kind of hash', 'ann:$apr1$x$y'],
  ['a cut hash', `ann:${HASH.slice(0, -1)}`],
  ['more after the hash', `ann:${HASH}:admin`],
  ['a greater cost', `ann:${HASH.replace('$04$', '$15$')}`],
  ['a cost below that of bcrypt', `ann:${HASH.replace('$04$', '$03$')}`],
  ['a control character in the name', `a\u0000nn:${HASH}`],
  ['a long name', `${'a'.repeat(129)}:${HASH}`],
])('leaves out a line with %s, and names it without its hash', (_what, line) => {
  const { hashes, wrong } = parseServerUsers(`bob:${HASH}\n${line}\n`);
  expect([...hashes.keys()]).toEqual(['bob']);
  expect(wrong).toEqual([{ line: 2, why: expect.any(String) }]);
  expect(wrong[0]?.why).not.toContain(HASH.slice(7));
});

it('takes the first of two lines for a name, and a thousand users', () => {
  const lines = Array.from({ length: 1_002 }, (_, index) => `user-${index}:${HASH}\n`);
  const { hashes, wrong } = parseServerUsers(`user-0:${HASH}\n${lines.join('')}`);
  expect(hashes.size).toBe(1_000);
  expect(wrong.map(({ line }) => line)).toEqual([2, 1_002]);
});

it('changes only the lines of one user', () => {
  const text = `# ann: left in May\nann:old\nbob:${HASH}`;
  expect(withServerUser(text, 'ann', HASH)).toBe(`# ann: left in May\nbob:${HASH}\nann:${HASH}\n`);
  expect(withServerUser(text, 'ann')).toBe(`# ann: left in May\nbob:${HASH}\n`);
  expect(withServerUser('', 'ann', HASH)).toBe(`ann:${HASH}\n`);
  expect(withServerUser(`ann:${HASH}\n`, 'ann')).toBe('');
});

it.each([
  ['ann', true],
  ['Ann Smith', true],
  ['ann@example.org', true],
  ['é', true],
  ['', false],
  [' ann', false],
  ['a:b', false],
  ['#ann', false],
  ['a\nb', false],
])('the name %j is valid: %s', (name, isValid) => {
  expect(isServerUserName(name)).toBe(isValid);
});

it.each([
  ['a'.repeat(72), true],
  ['a'.repeat(73), false],
  ['é'.repeat(36), true],
  ['é'.repeat(37), false],
  ['a\0b', false],
])('bcrypt uses the whole of %s: %s', (password, isWhole) => {
  expect(isWholePassword(password)).toBe(isWhole);
});
