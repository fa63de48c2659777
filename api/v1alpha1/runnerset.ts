/** RunnerSet: VMs that take the jobs of one runner scale set of GitHub. Each VM takes one job. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import {
  AGE_COLUMN,
  type ApiObject,
  column,
  conditionColumn,
  type KindContent,
  nameRule,
  wide,
} from './kind.ts';
import type { DisplayDpiMaximum } from './fields.ts';
import { GITHUB_SECRET_TYPE } from './names.ts';
import { runnerConfigSchema, runnerTemplateSchema } from './vmtemplate.ts';
import { count, documented, immutable, integer, objectName, oneOf, text } from './schema.ts';

/** Largest number of VMs of one set. One statistics message and one list of runners stay small. */
const RUNNERS_LIMIT = 1_000;
/** Largest number of labels of one set. */
const LABELS_LIMIT = 16;
/** Longest URL of an organization: the name of the server has 253 characters, and names at GitHub have at most 100. */
const URL_LENGTH = 512;
/** Name at GitHub: of an organization, an owner or a repository. It is never `.` or `..`. */
const SEGMENT = '[-_.A-Za-z0-9]*[-_A-Za-z0-9][-_.A-Za-z0-9]*';
const GITHUB_URL = new RegExp(
  `^https://[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?(:[0-9]{1,5})?/(enterprises/)?${SEGMENT}(/${SEGMENT})?$`,
);
/** Name of a scale set. It is also the value of a label of the VMs. */
const SCALE_SET_NAME = /^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$/;
/** Longest name of a RunnerSet. A VM has this name, a hyphen and 13 characters, and at most 63 in all. */
const NAME_LENGTH = 48;

const githubSchema = z
  .object({
    url: text(
      'URL of the organization, the repository or the enterprise, for example https://github.com/acme.',
      URL_LENGTH,
      GITHUB_URL,
    ),
    credentialSecret: objectName(
      `Name of a Secret of type ${GITHUB_SECRET_TYPE} in this namespace. It has the key token, or the keys clientId (or appId), installationId and privateKey of a GitHub App. Its key host names the only server that gets these credentials. Without the key, the server is github.com.`,
    ),
    caSecret: objectName(
      'Name of a Secret in this namespace. Its key ca.crt has the certificates of the authorities that can sign the certificate of the server, as PEM text. The default is the public authorities.',
    ).optional(),
    runnerGroup: text('Runner group of the scale set. The default is the group default.', 128).optional(),
    name: text(
      'Name of the scale set, which workflows write after runs-on. The default is the name of the RunnerSet.',
      63,
      SCALE_SET_NAME,
    ).optional(),
    labels: z
      .array(text('A label.', 100, /^[^\s,]+$/))
      .min(1)
      .max(LABELS_LIMIT)
      .meta({
        description: 'Labels of the scale set at GitHub. The default is the name of the scale set.',
        'x-kubernetes-list-type': 'set',
      })
      .optional(),
  })
  .meta(
    documented(
      'The scale set at GitHub. Only credentialSecret and caSecret can be changed.',
      ...immutable('url', 'runnerGroup', 'name', 'labels'),
    ),
  );

/** Returns the schema of the spec of a RunnerSet. `dpiMaximum` is the largest allowed DPI of the display. */
function runnerSetSpec(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object({
      github: githubSchema,
      min: integer(
        'Number of VMs that wait for jobs, in addition to those with jobs. The default is 0.',
        0,
        RUNNERS_LIMIT,
      ).optional(),
      max: integer('Largest number of VMs.', 1, RUNNERS_LIMIT),
      configRef: runnerConfigSchema('VMConfig of the VMs.').optional(),
      template: runnerTemplateSchema(dpiMaximum).optional(),
    })
    .meta(
      documented('Desired runners.', oneOf(['configRef', 'template']), {
        rule: '!has(self.min) || self.min <= self.max',
        message: 'min must be at most max',
        fieldPath: '.min',
      }),
    );
}
export type RunnerSetSpec = z.infer<ReturnType<typeof runnerSetSpec>>;

/** Names of the numbers that GitHub gives for a scale set. */
export const STATISTICS = [
  'totalAvailableJobs',
  'totalAcquiredJobs',
  'totalAssignedJobs',
  'totalRunningJobs',
  'totalRegisteredRunners',
  'totalBusyRunners',
  'totalIdleRunners',
] as const;
export type StatisticName = (typeof STATISTICS)[number];
/** Numbers of jobs and runners of a scale set. */
export type Statistics = Record<StatisticName, number>;

const statisticsSchema = z
  .object({
    totalAvailableJobs: count('Jobs that nobody has taken.'),
    totalAcquiredJobs: count('Jobs that the set has taken.'),
    totalAssignedJobs: count('Jobs that need a runner of the set, with those that run.'),
    totalRunningJobs: count('Jobs that run.'),
    totalRegisteredRunners: count('Runners that GitHub knows.'),
    totalBusyRunners: count('Runners with a job.'),
    totalIdleRunners: count('Runners that wait for a job.'),
  })
  .meta({ description: 'The last numbers that GitHub sent.' });

export const runnerSetStatusSchema = z
  .object({
    ...commonStatus(),
    scaleSetID: count('Number of the scale set at GitHub.').optional(),
    statistics: statisticsSchema.optional(),
    wanted: count('Number of VMs that min, max and the assigned jobs ask for.').optional(),
    capacity: count(
      'Number of jobs that GitHub may assign to the set: its VMs on hosts, and its share of the free slots. It is 0 without a session.',
    ).optional(),
    runners: count('Number of VMs that have a job or can take one.').optional(),
    readyRunners: count('Number of these VMs that are Ready.').optional(),
  })
  .meta({ description: 'Last observed state of the set.' });
export type RunnerSetStatus = z.infer<typeof runnerSetStatusSchema>;
export type RunnerSet = ApiObject<RunnerSetSpec, RunnerSetStatus>;

/** Returns the RunnerSet kind. `dpiMaximum` is the largest allowed DPI of the display. */
export function runnerSetKind(dpiMaximum: DisplayDpiMaximum): KindContent {
  return {
    shortNames: ['runset'],
    description:
      'Runners for the jobs of GitHub. Each VM takes one job. The program berth-runners must serve the namespace (chart value runners).',
    spec: runnerSetSpec(dpiMaximum),
    status: runnerSetStatusSchema,
    rules: [nameRule(NAME_LENGTH, { dots: false })],
    columns: [
      column('Jobs', '.status.statistics.totalAssignedJobs', 'Jobs that need a runner.', 'integer'),
      column('Runners', '.status.runners', 'VMs that have a job or can take one.', 'integer'),
      column('Max', '.spec.max', 'Largest number of VMs.', 'integer'),
      conditionColumn('Ready', 'Ready', 'status'),
      conditionColumn('Reason', 'Ready', 'reason'),
      AGE_COLUMN,
      wide(column('Capacity', '.status.capacity', 'Jobs that GitHub may assign.', 'integer')),
      wide(column('URL', '.spec.github.url', 'Organization, repository or enterprise at GitHub.')),
      wide(conditionColumn('Message', 'Ready', 'message')),
    ],
  };
}
