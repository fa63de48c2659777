import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { SilentConnections } from './handler.ts';

class FakeSocket extends EventEmitter {
  destroyed = false;

  destroy(): void {
    this.destroyed = true;
    this.emit('close');
  }
}

let silent: SilentConnections;

beforeEach(() => {
  vi.useFakeTimers();
  silent = new SilentConnections();
});

afterEach(() => {
  vi.useRealTimers();
});

function keep(count: number): FakeSocket[] {
  const sockets = Array.from({ length: count }, () => new FakeSocket());
  sockets.forEach((socket) => silent.keep(socket as unknown as Socket));
  return sockets;
}

it('closes a connection after 30 s', () => {
  const [socket] = keep(1);
  vi.advanceTimersByTime(29_999);
  expect(socket?.destroyed).toBe(false);
  vi.advanceTimersByTime(1);
  expect(socket?.destroyed).toBe(true);
});

it('keeps a thousand connections, and closes the oldest of more', () => {
  const sockets = keep(1_003);
  expect(sockets.map(({ destroyed }) => destroyed)).toEqual(sockets.map((_socket, index) => index < 3));
});

it('does not count connections that their clients have closed', () => {
  const [first, ...others] = keep(1_000);
  first?.destroy();
  keep(1);
  expect(others.filter(({ destroyed }) => destroyed)).toEqual([]);
  expect(vi.getTimerCount()).toBe(1_000);
});
