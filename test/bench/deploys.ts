/** Measures the HTTP API while as many deployments wait as the hosts have slots. */
import { deployMany, type DeployLoad } from '../worlds/deployload.ts';
import { format } from './report.ts';
import type { Verdict } from './verdicts.ts';

const HOSTS = 250;
const DEPLOYMENTS = 1_000;
const TARGET_MEGABYTES = 400;

export async function measureDeploys(): Promise<DeployLoad> {
  return await deployMany(DEPLOYMENTS, HOSTS);
}

export function deploysTable({ waitSeconds, answerSeconds, peakMegabytes }: DeployLoad): string {
  return format([
    [`${DEPLOYMENTS} deployments over HTTP, ${HOSTS} hosts`, ''],
    ['until all wait', `${waitSeconds.toFixed(1)} s`],
    ['from there to the last answer', `${answerSeconds.toFixed(1)} s`],
    ['memory of the server, peak', `${peakMegabytes.toFixed(0)} MB`],
  ]);
}

export function deploysVerdicts({ answered, names, peakMegabytes }: DeployLoad): Verdict[] {
  return [
    {
      claim: 'deploys: answers with 200 and a name of their own',
      measured: `${answered} with ${names} names`,
      target: `${DEPLOYMENTS}`,
      reached: answered === DEPLOYMENTS && names === DEPLOYMENTS,
    },
    {
      claim: 'deploys: memory of the server, peak',
      measured: `${peakMegabytes.toFixed(0)} MB`,
      target: `under ${TARGET_MEGABYTES} MB`,
      reached: peakMegabytes < TARGET_MEGABYTES,
    },
  ];
}
