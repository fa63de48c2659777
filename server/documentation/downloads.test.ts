import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Downloads } from './downloads.ts';

class FakeResponse extends EventEmitter {
  destroy(): void {
    this.emit('close');
  }
}

let downloads: Downloads;

beforeEach(() => {
  vi.useFakeTimers();
  downloads = new Downloads();
});

afterEach(() => {
  vi.useRealTimers();
});

function begin(destroyed = false): FakeResponse {
  const raw = Object.assign(new FakeResponse(), { destroyed });
  downloads.begin(raw as unknown as ServerResponse);
  return raw;
}

it('refuses more answers than the limit, until one has ended', () => {
  const answers = Array.from({ length: 32 }, () => begin());
  expect(begin).toThrow(/Too many clients/);
  answers[0]?.destroy();
  expect(begin).not.toThrow();
  expect(begin).toThrow(/Too many clients/);
});

it('does not count the answers of clients that are gone', () => {
  Array.from({ length: 33 }, () => begin(true));
  expect(begin).not.toThrow();
});

it('ends an answer that takes too long', () => {
  Array.from({ length: 32 }, () => begin());
  vi.advanceTimersByTime(29_000);
  expect(begin).toThrow(/Too many clients/);
  vi.advanceTimersByTime(1_000);
  expect(begin).not.toThrow();
});
