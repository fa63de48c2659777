/** The metrics of a host's image store. */
import { Counter, Gauge, type Registry } from 'prom-client';

export type ImageMetrics = ReturnType<typeof imageMetrics>;

/**
 * Creates the metrics of a store. At each scrape, `used` returns the number of bytes that images take on the disk, and `images` returns the
 * number of images.
 */
export function imageMetrics(
  registry: Registry,
  usage: { used: () => Promise<number>; images: () => number },
) {
  const registers = [registry];
  return {
    bytes: new Gauge({
      name: 'berth_image_store_bytes',
      help: 'Bytes that images and unfinished fetches of images take on the disk of this host',
      registers,
      async collect() {
        this.set(await usage.used());
      },
    }),
    images: new Gauge({
      name: 'berth_image_store_images',
      help: 'Images that are on this host',
      registers,
      collect() {
        this.set(usage.images());
      },
    }),
    evictions: new Counter({
      name: 'berth_image_store_evictions_total',
      help: 'Images removed from this host to free disk space',
      registers,
    }),
    pulls: new Counter({
      name: 'berth_image_pulls_total',
      help: 'Fetches of images from registries and over http, by result',
      labelNames: ['result'] as const,
      registers,
    }),
    pulledBytes: new Counter({
      name: 'berth_image_pulled_bytes_total',
      help: 'Bytes of images that this host received over the network',
      registers,
    }),
  };
}
