import { hashSync } from 'bcryptjs';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { Passwords, PasswordThread } from './passwords.ts';

const HASH = hashSync('secret', 4);

/** A thread whose answers the test gives. */
class HeldThread {
  readonly asked: { password: string; hash: string; answer: (isSame: boolean) => void }[] = [];

  async compare(comparison: { password: string; hash: string }): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.asked.push({ ...comparison, answer: resolve });
    return await promise;
  }

  /** Answers everything, in turn, until nothing waits. Returns the passwords in the order of their checks. */
  async finish(): Promise<string[]> {
    const passwords: string[] = [];
    for (let waiting = this.asked.shift(); waiting !== undefined; waiting = this.asked.shift()) {
      passwords.push(waiting.password);
      waiting.answer(waiting.password === 'secret');
      await new Promise(setImmediate);
    }
    return passwords;
  }
}

const always = (): boolean => true;

function signIn(name: string, password: string, source = '192.0.2.1') {
  return { name, password, source };
}

it('compares in a thread, which starts again after its end', async () => {
  const thread = new PasswordThread(pino({ level: 'silent' }));
  expect(await thread.compare({ password: 'secret', hash: HASH })).toBe(true);
  expect(await thread.compare({ password: 'wrong', hash: HASH })).toBe(false);
  await thread.stop();
  expect(await thread.compare({ password: 'secret', hash: HASH })).toBe(true);
  await thread.stop();
});

it('fails a comparison whose thread ends', async () => {
  const thread = new PasswordThread(pino({ level: 'silent' }));
  const comparing = thread.compare({ password: 'secret', hash: HASH.replace('$04$', '$14$') });
  await thread.stop();
  await expect(comparing).rejects.toThrow('ended');
});

it('checks equal requests once, and remembers only right passwords, as long as the hash is the same', async () => {
  const thread = new HeldThread();
  const passwords = new Passwords(thread);
  const right = Array.from({ length: 40 }, () => passwords.check(signIn('ann', 'secret'), HASH, always));
  expect(await thread.finish()).toEqual(['secret']);
  expect(new Set(await Promise.all(right))).toEqual(new Set([true]));
  expect(await passwords.check(signIn('ann', 'secret', '192.0.2.2'), HASH, always)).toBe(true);
  for (const [password, hash] of [
    ['wrong', HASH],
    ['wrong', HASH],
    ['secret', hashSync('secret', 4)],
  ] as const) {
    const check = passwords.check(signIn('ann', password), hash, always);
    expect(await thread.finish()).toEqual([password]);
    expect(await check).toBe(password === 'secret');
  }
});

it('lets users take turns, and all names that do not exist are one user, which are checked only if there is a place', async () => {
  const thread = new HeldThread();
  const passwords = new Passwords(thread);
  const first = passwords.check(signIn('ann', 'first'), HASH, always);
  const unknown = Array.from({ length: 20 }, (_, index) =>
    passwords.check(signIn(`nobody-${index}`, `unknown-${index}`, `192.0.2.${index}`), undefined, always),
  );
  const known = passwords.check(signIn('ann', 'secret'), HASH, always);
  expect(await thread.finish()).toEqual([
    'first',
    'unknown-0',
    'secret',
    ...Array.from({ length: 7 }, (_, index) => `unknown-${index + 1}`),
  ]);
  expect(await first).toBe(false);
  expect(await known).toBe(true);
  expect(new Set(await Promise.all(unknown))).toEqual(new Set([false]));
});

it('leaves places for other users and sources, and refuses with 503 when there is none', async () => {
  const thread = new HeldThread();
  const passwords = new Passwords(thread);
  const refused: unknown[] = [];
  const check = async (name: string, index: number, source: string): Promise<void> => {
    await passwords.check(signIn(name, `${name}-${index}`, source), HASH, always).catch((error: unknown) => {
      refused.push(error);
    });
  };
  const many = (count: number, one: (index: number) => Promise<void>) =>
    Array.from({ length: count }, (_, i) => one(i));
  const checks = many(20, async (index) => await check('ann', index, `198.51.100.${index}`));
  await new Promise(setImmediate);
  expect(refused).toHaveLength(12);
  expect(refused[0]).toMatchObject({ status: 503 });
  checks.push(...many(20, async (index) => await check(`user-${index}`, index, '192.0.2.1')));
  await new Promise(setImmediate);
  expect(refused).toHaveLength(24);
  checks.push(...many(80, async (index) => await check(`more-${index}`, index, `203.0.113.${index}`)));
  await new Promise(setImmediate);
  expect(passwords.waiting).toBe(64);
  // The second check of a user comes after the first check of all others.
  const order = await thread.finish();
  expect(order.slice(0, 3)).toEqual(['ann-0', 'ann-1', 'user-0-0']);
  expect(order.slice(-6)).toEqual(Array.from({ length: 6 }, (_, index) => `ann-${index + 2}`));
  await Promise.all(checks);
});

it('does not compare for a source that has been locked out in the meantime', async () => {
  const thread = new HeldThread();
  const passwords = new Passwords(thread);
  const first = passwords.check(signIn('ann', 'first'), HASH, always);
  const unwanted = passwords.check(signIn('ann', 'secret'), HASH, () => false);
  expect(await thread.finish()).toEqual(['first']);
  expect(await Promise.all([first, unwanted])).toEqual([false, false]);
});

it('never accepts a password of which bcrypt ignores a part, and does not check it', async () => {
  const thread = new HeldThread();
  const long = 'a'.repeat(72);
  expect(await new Passwords(thread).check(signIn('ann', `${long}b`), hashSync(long, 4), always)).toBe(false);
  expect(thread.asked).toEqual([]);
});
