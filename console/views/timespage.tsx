/** How long jobs waited and ran in the last 24 hours. */
import { useEffect, useState } from 'preact/hooks';
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
  timeBars,
  type TimesDocument,
  topOf,
  totalOf,
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
  const { documents, freshness } = useTimes(api, namespace);
  const now = Date.now();
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
      {documents === undefined ? (
        <ReadState freshness={freshness} what="VMs" namespace={namespace} />
      ) : documents.length === 0 ? (
        <Notice title="There are no numbers of jobs">
          <p>
            A VM counts when it first runs and when it ends. A VM of a pool counts from its claim. The numbers
            are here about two minutes later.
          </p>
          <p>
            The operator keeps the numbers of {JOB_TIMES_NAMESPACES} namespaces. Jobs in further ones are not
            counted.
          </p>
        </Notice>
      ) : (
        <>
          <Chart documents={documents} measure="waited" now={now} />
          <Chart documents={documents} measure="ran" now={now} />
          <Begun documents={documents} />
        </>
      )}
    </div>
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
/** Bars of the last hour. */
const HOUR_BARS = 12;
/** Hours between two labels of the time. */
const LABEL_HOURS = 3;

interface ChartProps {
  readonly documents: readonly TimesDocument[];
  readonly measure: TimeMeasure;
  readonly now: number;
}

function Chart({ documents, measure, now }: ChartProps) {
  const bars = timeBars(documents, measure, now);
  const top = topOf(bars);
  const [hour, day] = [totalOf(bars, HOUR_BARS), totalOf(bars, bars.length)];
  const id = `${measure}-title`;
  const begun = begunOf(documents);
  const mark = begun?.hasEarlier === true ? placeOfTime(begun.at, now) : undefined;
  const text = `${day.count} jobs in 24 hours, ${formatSeconds(day.mean)} on average, ${formatSeconds(day.longest)} at most`;
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{TITLES[measure]}</h2>
      <Totals hour={hour} day={day} />
      <svg class="chart" viewBox={`-2 -14 ${WIDTH + 62} ${HEIGHT + 34}`} role="img" aria-label={text}>
        {[0.5, 1].map((share) => (
          <g key={share}>
            <line class="grid" x1="0" x2={WIDTH} y1={HEIGHT * (1 - share)} y2={HEIGHT * (1 - share)} />
            <text x={WIDTH + 6} y={HEIGHT * (1 - share) + 4}>
              {formatSeconds(top * share)}
            </text>
          </g>
        ))}
        <Bars bars={bars} top={top} />
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
        <span class="legend-mean" /> average of five minutes <span class="legend-longest" /> longest
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

function Bars({ bars, top }: { readonly bars: readonly Bar[]; readonly top: number }) {
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
            <title>{`${count} jobs: ${formatSeconds(mean)} on average, ${formatSeconds(longest)} at most`}</title>
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

function Totals({ hour, day }: { readonly hour: Bar; readonly day: Bar }) {
  return (
    <table class="facts-table totals">
      <thead>
        <tr>
          <th scope="col">Time</th>
          <th scope="col">Jobs</th>
          <th scope="col">Average</th>
          <th scope="col">Longest</th>
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
            <td>{count}</td>
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
): { readonly documents: readonly TimesDocument[] | undefined; readonly freshness: Freshness } {
  const [documents, setDocuments] = useState<readonly TimesDocument[]>();
  const [freshness, setFreshness] = useState<Freshness>({ state: 'loading' });
  useEffect(() => {
    const end = new AbortController();
    const scope = namespace === undefined ? '' : `/namespaces/${encodeURIComponent(namespace)}`;
    const read = async () => {
      for (; !end.signal.aborted; await pauseFor(READ_MILLISECONDS, end.signal)) {
        await whenShown(end.signal);
        try {
          const answer = await api.get<{ documents: TimesDocument[] }>(`/console/times${scope}`, end.signal);
          setDocuments(answer.documents);
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
  return { documents, freshness };
}
