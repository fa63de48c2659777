/**
 * Contains the log writer, a process that runs beside each hypervisor. The log writer stores the output of the guest's console and of the
 * hypervisor in files with a size limit. The process lives as long as the hypervisor. Therefore the files stay within their size limit and
 * contain the newest output, even while no agent runs.
 *
 * The files are `NAME.POSITION.log` in the machine's folder. POSITION is the number of bytes of the log before the file's first byte. A
 * reader compares POSITION with the position up to which it has read. So the reader knows how many bytes were removed before it read them.
 */
import { readdirSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pause } from '../../base/time.ts';
import { isMissing, undefinedIf, undefinedIfSync } from '../../base/errors.ts';
import { identify } from '../processes/process.ts';

/**
 * Names of a machine's logs. `serial` is the output of the guest's console from all starts of the machine. `hypervisor` is the hypervisor's
 * output since its last start.
 */
export type LogName = 'serial' | 'hypervisor';

/**
 * Size limit of one file of a log, 4 MiB. The log writer keeps two files of each log, the current file and the previous file. Together,
 * these two files have the same size limit as a console's store (store.ts).
 */
export const SEGMENT_BYTES = 4 * 1024 * 1024;

export interface Segment {
  /** Position of the file's first byte in the log. */
  start: number;
  path: string;
}

const SEGMENT = /^(serial|hypervisor)\.(\d{1,15})\.log$/;
/**
 * A secret that a program prints, for example the password of its VNC server. The log writer stores it in a file of its own, and writes
 * `(hidden)` into the log instead.
 */
export interface PrintedSecret {
  /** Regular expression of Perl for the secret within a line. */
  pattern: string;
  /** Name of the file in the machine's folder. Only the user of the log writer can read it. */
  file: string;
}

/** Name of the file with the log writer's process id. The writer removes the file when it has written all output. */
const LOGGING = 'logging';

/**
 * Name of a pipe in the machine's folder. The pipe is the standard input of the hypervisor, which passes the bytes on to the guest's
 * console. The agent creates the pipe before it starts the log writer.
 */
export const TERMINAL = 'serial.in';

/**
 * Time limit for the log writer to end after the hypervisor has ended. Before it ends, the log writer stores the last output from its two
 * pipes, at most 64 KiB from each. This takes a few milliseconds, even on an overloaded host.
 */
const WRITER_TIMEOUT_MILLISECONDS = 2_000;
const WRITER_INTERVAL_MILLISECONDS = 5;

/**
 * Source code of the Perl program that starts a hypervisor and its log writer. The agent starts this program as a process. The process
 * forks a child, which becomes the log writer. The parent then becomes the hypervisor by `exec`, so its process id stays the same. The
 * program is in Perl, because a Perl process uses 0.4 MiB and starts in 3 ms, and a Node.js process would use 8 MiB. The program uses no
 * Perl modules, because the hypervisor's root file system contains none.
 */
const PROGRAM = String.raw`
my ($limit, $errors, $secret, $hidden, @command) = @ARGV;
# The agent sends a byte when it has moved this process into the machine's control group. Only after that, this process forks the log
# writer, so that the log writer is in the group too.
sysread(STDIN, my $go, 1) or exit 1;
pipe(my $serial, my $guest) or die "pipe: $!\n";
pipe(my $output, my $words) or die "pipe: $!\n";
defined(my $writer = fork) or die "fork: $!\n";
if ($writer) {
  open(my $mark, '>', '${LOGGING}') or die "${LOGGING}: $!\n";
  print $mark $writer;
  close $mark;
  # The command's input is a pipe that is open for reading and for writing. So the input never ends.
  open(STDIN, '+<', '${TERMINAL}') or die "${TERMINAL}: $!\n";
  for ([\*STDOUT, $guest], [\*STDERR, $errors eq 'serial' ? $guest : $words]) {
    open($_->[0], '>&', $_->[1]) or die "descriptors: $!\n";
  }
  exec { $command[0] } @command or die "$command[0]: $!\n";
}

# The log writer gets its own name. Otherwise it would have the arguments of the command, and look like the machine.
$0 = 'berth-log-writer';
# The log writer ignores these signals, because it must not end before it has stored the last output of the command.
$SIG{$_} = 'IGNORE' for qw(HUP INT QUIT TERM PIPE);
umask 077;
close $guest;
close $words;
open($_, '+<', '/dev/null') for \*STDIN, \*STDOUT, \*STDERR;

# Begins a file of the log at the position, and removes all but the last two files.
sub begin {
  my ($log, $start) = @_;
  my $path = "$log->{name}.$start.log";
  open(my $file, '>>', $path) or return 0;
  @$log{qw(file start size)} = ($file, $start, -s $path);
  push @{$log->{kept}}, $path;
  unlink shift @{$log->{kept}} while @{$log->{kept}} > 2;
  return 1;
}

# Appends bytes to a log. If the disk is full, the bytes are lost, so that the guest never waits.
sub keep {
  my ($log, $bytes) = @_;
  return if $log->{size} + length($bytes) > $limit && !begin($log, $log->{start} + $log->{size});
  $log->{size} += syswrite($log->{file}, $bytes) || 0;
}

# Stores a secret in its own file, which is complete or not there.
sub hide {
  open(my $file, '>', "$hidden.new") or return '(hidden)';
  my $written = syswrite($file, $_[0]) || 0;
  close $file;
  rename "$hidden.new", $hidden if $written == length $_[0];
  return '(hidden)';
}

# Returns the bytes that can be written. If the log can have a secret, these are whole lines without it. The start of a line is kept back
# until its end comes, but only up to 4096 bytes.
sub sift {
  my ($log, $bytes, $ends) = @_;
  return $bytes if $secret eq '' || $log->{name} ne 'serial';
  $log->{rest} .= $bytes;
  my $lines = 1 + rindex($log->{rest}, "\n");
  $lines = length $log->{rest} if $ends || length($log->{rest}) - $lines > 4096;
  my $text = substr($log->{rest}, 0, $lines, '');
  $text =~ s/$secret/hide($&)/ge;
  return $text;
}

my %logs;
for (['serial', $serial], ['hypervisor', $output]) {
  my ($name, $pipe) = @$_;
  opendir(my $folder, '.') or exit 1;
  my @starts = sort { $a <=> $b } map { /^$name\.(\d+)\.log$/ ? $1 : () } readdir $folder;
  my $last = @starts ? pop @starts : 0;
  my $log = { name => $name, pipe => $pipe, rest => '', kept => [map { "$name.$_.log" } @starts] };
  begin($log, $last) or exit 1;
  $logs{fileno $pipe} = $log;
}
while (%logs) {
  my $ready = '';
  vec($ready, $_, 1) = 1 for keys %logs;
  select($ready, undef, undef, undef);
  # A guest prints single bytes. A pause of 2 ms collects them into one write. The pipe can hold the output of 2 ms at 30 MB a second.
  select(undef, undef, undef, 0.002);
  for my $descriptor (grep { vec($ready, $_, 1) } keys %logs) {
    my $log = $logs{$descriptor};
    if (sysread($log->{pipe}, my $bytes, 65536)) { keep($log, sift($log, $bytes, 0)) }
    else { keep($log, sift($log, '', 1)); delete $logs{$descriptor} }
  }
}
unlink '${LOGGING}';
`;

/**
 * Returns a command line that waits for a byte on standard input, and then runs `command` beside a log writer. The log writer stores the
 * output in files in the working directory. The standard output becomes the log `serial`. The standard error becomes the log that `errors`
 * names. The log `serial` does not get the secret.
 */
export function withLogWriter(
  command: readonly string[],
  errors: LogName = 'hypervisor',
  { pattern, file }: PrintedSecret = { pattern: '', file: '' },
): [string, ...string[]] {
  return ['perl', '-e', PROGRAM, String(SEGMENT_BYTES), errors, pattern, file, ...command];
}

/** Waits until the log writer has stored all output and ended, but at most 2 s. Call this function when the hypervisor has ended. */
export async function logsWritten(folder: string): Promise<void> {
  const deadline = performance.now() + WRITER_TIMEOUT_MILLISECONDS;
  while ((await isWriting(folder)) && performance.now() < deadline) {
    await pause(WRITER_INTERVAL_MILLISECONDS);
  }
}

async function isWriting(folder: string): Promise<boolean> {
  const pid = await logWriterPid(folder);
  return pid !== undefined && (await identify(pid)) !== undefined;
}

/** Returns the process id of the machine's log writer, or undefined if the log writer has stored all output and ended. */
export async function logWriterPid(folder: string): Promise<number | undefined> {
  const pid = await undefinedIf(isMissing, readFile(join(folder, LOGGING), 'utf8'));
  return pid === undefined ? undefined : Number(pid);
}

/** Removes the output of the hypervisor's last start. */
export async function forgetLastOutput(folder: string): Promise<void> {
  const segments = listSegments(folder, 'hypervisor').map(({ path }) => path);
  const files = [...segments, join(folder, LOGGING)];
  await Promise.all(files.map(async (path) => await rm(path, { force: true })));
}

/** Returns the name of one file of a log. `start` is the position of the file's first byte in the log. */
export function segmentName(log: LogName, start: number): string {
  return `${log}.${start}.log`;
}

/** Returns the files of one log, the oldest first. The list is empty if the folder or the log is missing. */
export function listSegments(folder: string, log: LogName): Segment[] {
  const names = undefinedIfSync(isMissing, () => readdirSync(folder)) ?? [];
  return names
    .flatMap((name) => {
      const [, of, start] = SEGMENT.exec(name) ?? [];
      return of === log ? [{ start: Number(start), path: join(folder, name) }] : [];
    })
    .sort((one, other) => one.start - other.start);
}
