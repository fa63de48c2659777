import { expect, test } from 'vitest';
import { withoutEmptyFields } from './identityprovider.ts';

async function read(body: string | null, status = 200): Promise<string> {
  const fetch = withoutEmptyFields(async () => new Response(body, { status, headers: { a: 'b' } }));
  const answer = await fetch('https://provider.example', {});
  expect([answer.status, answer.headers.get('a')]).toEqual([status, 'b']);
  return await answer.text();
}

test.each([
  ['{"id_token":"T","refresh_token":null,"scope":"","expires_in":null}', '{"id_token":"T"}'],
  ['{"expires_in":"300","interval":"5"}', '{"expires_in":300,"interval":5}'],
  ['{"expires_in":"soon","other":"300"}', '{"expires_in":"soon","other":"300"}'],
  ['{"scopes_supported":null,"issuer":"i","keys":[null,""]}', '{"issuer":"i","keys":[null,""]}'],
  ['\uFEFF{"issuer":"i"}', '{"issuer":"i"}'],
])('%s is read as %s', async (body, expected) => {
  expect(await read(body)).toBe(expected);
  expect(await read(body, 400)).toBe(expected);
});

test.each(['<html>', '', '[null]', 'null', '"text"'])('%j stays as it is', async (body) => {
  expect(await read(body)).toBe(body);
});

test('an answer without a body stays as it is', async () => {
  expect(await read(null, 204)).toBe('');
});
