/**
 * Places for requests of callers whom nobody knows. If all are taken, a new request displaces the oldest one of the source with the most
 * places. So one source cannot keep others out, and one source, for example a proxy with many people behind it, can use all places that no
 * other source needs. Anyone with as many sources as places can still displace others for as long as they send requests.
 */
import type { Socket } from 'node:net';
import { peerAddress, sourceOf } from '../../base/address.ts';

interface Place {
  readonly onDisplaced: () => void;
}

export class SourcePlaces {
  readonly #limit: number;
  /** Taken places by source, the oldest first. */
  readonly #taken = new Map<string, Set<Place>>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  /**
   * Takes a place for a request over this connection. `onDisplaced` is called when another request gets the place. Returns a function that
   * frees the place. It does nothing if the place is no longer taken.
   */
  take(socket: Pick<Socket, 'remoteAddress'> | null, onDisplaced: () => void): () => void {
    const address = socket === null ? undefined : peerAddress(socket);
    const source = address === undefined ? '' : sourceOf(address);
    const place: Place = { onDisplaced };
    this.#makeRoom();
    this.#taken.set(source, (this.#taken.get(source) ?? new Set()).add(place));
    return () => this.#free(source, place);
  }

  #makeRoom(): void {
    const sources = [...this.#taken].toSorted(([, one], [, other]) => other.size - one.size);
    const size = sources.reduce((sum, [, places]) => sum + places.size, 0);
    const [source = '', places = new Set<Place>()] = sources[0] ?? [];
    const [oldest] = places;
    if (size >= this.#limit && oldest !== undefined) {
      this.#free(source, oldest);
      oldest.onDisplaced();
    }
  }

  #free(source: string, place: Place): void {
    const places = this.#taken.get(source);
    places?.delete(place);
    if (places?.size === 0) {
      this.#taken.delete(source);
    }
  }
}
