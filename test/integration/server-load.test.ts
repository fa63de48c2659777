/** Deployments over the HTTP API that all wait at the same time. `make bench` does the same with 1,000 on 250 hosts. */
import { expect, it } from 'vitest';
import { deployMany } from '../worlds/deployload.ts';

const HOSTS = 25;
const DEPLOYMENTS = 100;
/** Limit of the memory of the server. 1,000 deployments need less than 300 MB, and about half of it is the program itself. */
const MEMORY_MEGABYTES = 250;
/** Time limit. A machine that did much else needed 96 s. */
const TEST_MILLISECONDS = 300_000;

it(`answers ${DEPLOYMENTS} deployments that fill ${HOSTS} hosts, and their waits need little memory`, {
  timeout: TEST_MILLISECONDS,
}, async () => {
  const { answered, names, hosts, peakMegabytes } = await deployMany(DEPLOYMENTS, HOSTS);
  expect({ answered, names, hosts }).toEqual({ answered: DEPLOYMENTS, names: DEPLOYMENTS, hosts: HOSTS });
  expect(peakMegabytes).toBeLessThan(MEMORY_MEGABYTES);
});
