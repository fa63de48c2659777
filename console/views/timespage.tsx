/** How long jobs waited and ran in the last 24 hours. */
import { useEffect, useState } from 'preact/hooks';
import type { TimesAnswer } from '../../api/http/consoletimes.ts';
import { JOB_TIMES_NAMESPACES } from '../../api/v1alpha1/jobtimelimits.ts';
import type { Api } from '../data/api.ts';
import { freshnessAfter, type Freshness } from '../data/follow.ts';
import { pauseFor, whenShown } from '../data/waits.ts';
import {
  type Bar,
  begunOf,
  formatSeconds,
  type TimeMeasure,
  placeOfTime,
  shownTimes,
  type TimesDocument,
  type TimesSource,
  topOf,
} from '../model/times.ts';
import { Notice, ReadState, StaleNotice } from './states.tsx';

interface TimesPageProps {
  readonly api: Api;
  readonly namespace: string | undefined;
}

/** Interval in milliseconds between two reads. The operator stores the times at most once a minute. */
const READ_MILLISECONDS = 30_000;

const TITLES: Readonly<Record<TimeMeasure, string>> = {
  waited: 'Waited until the VM first ran, or was ready after its claim from a pool',
  ran: 'Ran until the end of the VM',
};

export function TimesPage({ api, namespace }: TimesPageProps) {
  const { answer, freshness } = useTimes(api, namespace);
  const where = namespace === undefined ? 'in all namespaces' : `in namespace ${namespace}`;
  return (
    // The keyboard scrolls the page, which has no links.
    <div class="details times" tabIndex={0} role="region" aria-label="Times">
      <header>
        <h1>
          Times <span class="in">of the last 24 hours {where}</span>
        </h1>
      </header>
      <StaleNotice freshness={freshness} />
      {answer === undefined ? (
        <ReadState freshness={freshness} what="VMs" namespace={namespace} />
      ) : (
        <Answer answer={answer} />
      )}
    </div>
  );
}

function Answer({ answer }: { readonly answer: TimesAnswer }) {
  const { prometheus, documents = [], refusal } = answer;
  const now = Date.now();
  const isEmpty = documents.length === 0 && (prometheus?.entries.length ?? 0) === 0;
  return (
    <>
      {refusal === undefined ? null : (
        <p class="stale" role="status">
          {refusal}. This page shows the numbers of the operator until Prometheus answers.
        </p>
      )}
      {isEmpty ? (
        <NoTimes source={sourceOf(answer)} />
      ) : (
        <>
          <Chart answer={answer} measure="waited" now={now} />
          <Chart answer={answer} measure="ran" now={now} />
          {prometheus === undefined ? <Begun documents={documents} /> : <OfPrometheus />}
        </>
      )}
    </>
  );
}

function sourceOf({ prometheus }: TimesAnswer): TimesSource {
  return prometheus === undefined ? 'operator' : 'prometheus';
}

function NoTimes({ source }: { readonly source: TimesSource }) {
  return (
    <Notice title="There are no numbers of jobs">
      <p>
        A VM counts when it first runs and when it ends. A VM of a pool counts from its claim. The numbers are
        here some minutes later.
      </p>
      {source === 'prometheus' ? (
        <p>The numbers are those of Prometheus.</p>
      ) : (
        <p>
          The operator keeps the numbers of {JOB_TIMES_NAMESPACES} namespaces. Jobs in further ones are not
          counted.
        </p>
      )}
    </Notice>
  );
}

function OfPrometheus() {
  return (
    <p class="calm">
      The numbers are those of Prometheus, which estimates them between its scrapes. It does not know the
      longest time, so the charts show the time within which 95 % of the jobs were.
    </p>
  );
}

function Begun({ documents }: { readonly documents: readonly TimesDocument[] }) {
  const begun = begunOf(documents);
  return begun === undefined ? null : (
    <p class="calm">
      The operator has counted without a break since {new Date(begun.at).toLocaleString('en')}.
      {begun.hasEarlier
        ? ' Earlier numbers are of a process before it. Jobs that ended between the two are missing.'
        : ''}
      {documents.length >= JOB_TIMES_NAMESPACES
        ? ` The operator keeps the numbers of ${JOB_TIMES_NAMESPACES} namespaces. Jobs in further ones are missing.`
        : ''}
    </p>
  );
}

/** Size of a chart in its own units. A bar is 3 wide. */
const WIDTH = 864;
const HEIGHT = 140;
const HOURS = 24;
/** Hours between two labels of the time. */
const LABEL_HOURS = 3;

interface ChartProps {
  readonly answer: TimesAnswer;
  readonly measure: TimeMeasure;
  readonly now: number;
}

/** Names of the higher time of each bar. */
const HIGHEST: Readonly<Record<TimesSource, { readonly title: string; readonly after: string }>> = {
  operator: { title: 'Longest', after: 'at most' },
  prometheus: { title: '95 % within', after: 'for 95 % of them at most' },
};

function Chart({ answer, measure, now }: ChartProps) {
  const { bars, hour, day } = shownTimes(answer, measure, now);
  const { title, after } = HIGHEST[sourceOf(answer)];
  const top = topOf(bars);
  const id = `${measure}-title`;
  const begun = begunOf(answer.documents ?? []);
  const mark = begun?.hasEarlier === true ? placeOfTime(begun.at, now) : undefined;
  const text = `${formatCount(day.count)} in 24 hours, ${formatSeconds(day.mean)} on average, ${formatSeconds(day.longest)} ${after}`;
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{TITLES[measure]}</h2>
      <Totals hour={hour} day={day} highest={title} />
      <svg class="chart" viewBox={`-2 -14 ${WIDTH + 62} ${HEIGHT + 34}`} role="img" aria-label={text}>
        {[0.5, 1].map((share) => (
          <g key={share}>
            <line class="grid" x1="0" x2={WIDTH} y1={HEIGHT * (1 - share)} y2={HEIGHT * (1 - share)} />
            <text x={WIDTH + 6} y={HEIGHT * (1 - share) + 4}>
              {formatSeconds(top * share)}
            </text>
          </g>
        ))}
        <Bars bars={bars} top={top} after={after} />
        <line class="axis" x1="0" x2={WIDTH} y1={HEIGHT} y2={HEIGHT} />
        {hourLabels(now).map(({ x, label }) => (
          <text key={label} x={x} y={HEIGHT + 16} text-anchor="middle">
            {label}
          </text>
        ))}
        {mark === undefined ? null : (
          <line class="mark" x1={mark * WIDTH} x2={mark * WIDTH} y1="-10" y2={HEIGHT}>
            <title>The operator began to count anew</title>
          </line>
        )}
      </svg>
      <p class="legend calm">
        <span class="legend-mean" /> average of five minutes <span class="legend-longest" />{' '}
        {title.toLowerCase()}
        {mark === undefined ? null : (
          <>
            {' '}
            <span class="legend-mark" /> counted anew
          </>
        )}
      </p>
    </section>
  );
}

interface BarsProps {
  readonly bars: readonly Bar[];
  readonly top: number;
  readonly after: string;
}

function Bars({ bars, top, after }: BarsProps) {
  const width = WIDTH / bars.length;
  const heightOf = (seconds: number) => Math.max(1, (seconds / top) * HEIGHT);
  return (
    <>
      {bars.map(({ count, mean, longest }, index) =>
        count === 0 ? null : (
          // A bar is at its place for five minutes.
          <g key={index}>
            <rect
              class="longest"
              x={index * width}
              width={width - 0.6}
              y={HEIGHT - heightOf(longest)}
              height={heightOf(longest)}
            />
            <rect
              class="mean"
              x={index * width}
              width={width - 0.6}
              y={HEIGHT - heightOf(mean)}
              height={heightOf(mean)}
            />
            <title>{`${formatCount(count)}: ${formatSeconds(mean)} on average, ${formatSeconds(longest)} ${after}`}</title>
          </g>
        ),
      )}
    </>
  );
}

/** Returns the labels of the full hours that are multiples of three, with their places. */
function hourLabels(now: number): { readonly x: number; readonly label: string }[] {
  const labels = [];
  const date = new Date(now);
  date.setMinutes(0, 0, 0);
  for (let back = 0; back < HOURS; back += 1) {
    const place = placeOfTime(date.toISOString(), now);
    if (date.getHours() % LABEL_HOURS === 0 && place !== undefined) {
      labels.push({ x: place * WIDTH, label: `${String(date.getHours()).padStart(2, '0')}:00` });
    }
    date.setTime(date.getTime() - 3_600_000);
  }
  return labels;
}

/** Returns the number of jobs with its word. Estimates are no whole numbers. */
function formatCount(count: number): string {
  const jobs = Math.round(count);
  return `${jobs} ${jobs === 1 ? 'job' : 'jobs'}`;
}

interface TotalsProps {
  readonly hour: Bar;
  readonly day: Bar;
  readonly highest: string;
}

function Totals({ hour, day, highest }: TotalsProps) {
  return (
    <table class="facts-table totals">
      <thead>
        <tr>
          <th scope="col">Time</th>
          <th scope="col">Jobs</th>
          <th scope="col">Average</th>
          <th scope="col">{highest}</th>
        </tr>
      </thead>
      <tbody>
        {(
          [
            ['last hour', hour],
            ['24 hours', day],
          ] as const
        ).map(([name, { count, mean, longest }]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{Math.round(count)}</td>
            <td>{count === 0 ? '' : formatSeconds(mean)}</td>
            <td>{count === 0 ? '' : formatSeconds(longest)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function useTimes(
  api: Api,
  namespace: string | undefined,
): { readonly answer: TimesAnswer | undefined; readonly freshness: Freshness } {
  const [answer, setAnswer] = useState<TimesAnswer>();
  const [freshness, setFreshness] = useState<Freshness>({ state: 'loading' });
  useEffect(() => {
    const end = new AbortController();
    const scope = namespace === undefined ? '' : `/namespaces/${encodeURIComponent(namespace)}`;
    const read = async () => {
      for (; !end.signal.aborted; await pauseFor(READ_MILLISECONDS, end.signal)) {
        await whenShown(end.signal);
        try {
          setAnswer(await api.get<TimesAnswer>(`/console/times${scope}`, end.signal));
          setFreshness({ state: 'live' });
        } catch (error) {
          const after = freshnessAfter(error);
          if (end.signal.aborted || after.state === 'refused') {
            setFreshness(after);
            return;
          }
          setFreshness(after);
        }
      }
    };
    void read();
    return () => end.abort();
  }, [api, namespace]);
  return { answer, freshness };
}
