/**
 * The port relay, a process beside a hypervisor that forwards no ports itself. It passes on TCP connections from ports of the host to the guest. It
 * lives as long as the hypervisor, so connections go on while no agent runs.
 */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { writeWhole } from '../../base/files.ts';
import {
  findAllByArgument,
  findArguments,
  killForCertain,
  type ProcessIdentity,
  waitForExit,
} from '../processes/process.ts';

/** File in the machine's folder with the IPv4 address of the guest. The agent writes it, and the relay reads it for each connection. */
const ADDRESS_FILE = 'guest.address';
/**
 * Largest number of connections of one guest. Each one uses two descriptors of the relay. A desktop has some dozens from outside.
 */
const CONNECTIONS = 256;
/** Time limit for the connection to a guest on the same host. */
const CONNECT_SECONDS = 10;
/**
 * Time without data after which the relay asks whether a client or guest is still there. By default, systems wait two hours, and clients that
 * have vanished would take up all places meanwhile.
 */
const IDLE_SECONDS = 60;
/** Time in which the relay ends by itself after its hypervisor. It only has to notice the end. */
const END_MILLISECONDS = 2_000;

/**
 * Source code of the Perl program that opens the ports, starts the relay and becomes the command. A pipe, whose end the command inherits, tells
 * the relay that the command has ended. The program is in Perl, because a Perl process uses little memory, and macOS has Perl.
 */
const PROGRAM = String.raw`
use strict;
use Socket;
use Fcntl;
use Errno qw(EINPROGRESS EAGAIN EWOULDBLOCK EINTR);
my ($uid, $address, $ports, $most, $patience, $idle, @command) = @ARGV;
# TCP_KEEPALIVE of macOS, and TCP_KEEPIDLE of Linux.
my $idleOption = $^O eq 'darwin' ? 0x10 : 4;
my (%listeners, %sides);
for (split /,/, $ports) {
  my ($port, $target) = split /:/;
  socket(my $socket, PF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
  setsockopt($socket, SOL_SOCKET, SO_REUSEADDR, 1);
  bind($socket, pack_sockaddr_in($port, inet_aton($address))) or die "port $port: $!\n";
  listen($socket, 128) or die "port $port: $!\n";
  fcntl($socket, F_SETFL, O_NONBLOCK);
  $listeners{fileno $socket} = { socket => $socket, target => $target };
}
# Descriptors up to this number stay open in the command.
$^F = 1023;
pipe(my $end, my $life) or die "pipe: $!\n";
$^F = 2;
defined(my $relay = fork) or die "fork: $!\n";
if ($relay) { exec { $command[0] } @command or die "$command[0]: $!\n" }

# Otherwise the relay would have the arguments of the command, and look like the machine.
$0 = "berth-port-relay-$uid";
$SIG{$_} = 'IGNORE' for qw(HUP INT QUIT TERM PIPE);
close $life;
open($_, '+<', '/dev/null') for \*STDIN, \*STDOUT, \*STDERR;

# A side of a connection has the bytes that wait for it. 'over' tells that no more come, and 'shut' that its end was passed on.
sub side {
  my ($socket) = @_;
  fcntl($socket, F_SETFL, O_NONBLOCK);
  setsockopt($socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  # A text would be passed on as its bytes.
  setsockopt($socket, Socket::IPPROTO_TCP(), $idleOption, $idle + 0);
  return $sides{fileno $socket} = { socket => $socket, waiting => '', over => 0, shut => 0, since => undef };
}

# Ends both sides. With 'reset', the client sees an error.
sub drop {
  my ($side, $reset) = @_;
  my @both = grep { $_ } $side, $side->{peer};
  for (@both) {
    setsockopt($_->{socket}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0)) if $reset;
    delete $sides{fileno $_->{socket}};
    close $_->{socket};
    delete $_->{peer};
  }
}

sub target {
  open(my $file, '<', '${ADDRESS_FILE}') or return;
  read($file, my $text, 64);
  return ($text // '') =~ /^(\d+\.\d+\.\d+\.\d+)$/ ? inet_aton($1) : undef;
}

sub greet {
  my ($listener) = @_;
  accept(my $socket, $listener->{socket}) or return;
  my $client = side($socket);
  my $guest = target();
  if (!$guest || keys %sides > 2 * $most) { return drop($client, 1) }
  socket(my $out, PF_INET, SOCK_STREAM, 0) or return drop($client, 1);
  my $server = side($out);
  ($client->{peer}, $server->{peer}) = ($server, $client);
  $server->{since} = time;
  if (!connect($out, pack_sockaddr_in($listener->{target}, $guest)) && !$!{EINPROGRESS}) { drop($client, 1) }
}

# Takes bytes of a side for its peer.
sub take {
  my ($side) = @_;
  my $count = sysread($side->{socket}, my $bytes, 65536);
  if (!defined $count) { return if $!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR}; return drop($side, 1) }
  if ($count == 0) { $side->{over} = 1 } else { $side->{peer}{waiting} .= $bytes }
  give($side->{peer});
}

# Gives the side what waits for it, and its end when nothing does.
sub give {
  my ($side) = @_;
  return if defined $side->{since};
  if (length $side->{waiting}) {
    my $count = syswrite($side->{socket}, $side->{waiting});
    if (!defined $count) { return if $!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR}; return drop($side, 1) }
    substr($side->{waiting}, 0, $count, '');
  }
  if ($side->{peer}{over} && !length $side->{waiting} && !$side->{shut}) {
    $side->{shut} = 1;
    shutdown($side->{socket}, 1);
  }
  drop($side, 0) if $side->{shut} && $side->{peer}{shut};
}

# The connection to the guest is there, or has failed.
sub arrive {
  my ($side) = @_;
  return drop($side, 1) if unpack('i', getsockopt($side->{socket}, SOL_SOCKET, SO_ERROR));
  $side->{since} = undef;
  give($side);
}

for (;;) {
  my ($read, $write) = ('', '');
  vec($read, $_, 1) = 1 for fileno($end), keys %listeners;
  for my $number (keys %sides) {
    my $side = $sides{$number};
    vec($write, $number, 1) = 1 if defined $side->{since} || length $side->{waiting};
    # A side is read only if its peer has taken all that it sent.
    vec($read, $number, 1) = 1 if !$side->{over} && !defined $side->{since} && !length $side->{peer}{waiting};
  }
  ($read, $write) = ('', '') if select($read, $write, undef, 1) < 1;
  exit 0 if vec($read, fileno $end, 1);
  for my $number (grep { vec($write, $_, 1) } keys %sides) {
    my $side = $sides{$number} or next;
    defined $side->{since} ? arrive($side) : give($side);
  }
  for my $number (grep { vec($read, $_, 1) } keys %sides) {
    take($sides{$number}) if $sides{$number};
  }
  for my $number (grep { vec($read, $_, 1) } keys %listeners) { greet($listeners{$number}) }
  my @all = values %sides;
  for my $side (@all) {
    drop($side, 1) if defined $side->{since} && time - $side->{since} > $patience;
  }
}
`;

export interface RelayedPorts {
  /** IPv4 address of this host on which the ports are open; 0.0.0.0 means all addresses. */
  hostAddress: string;
  ports: readonly Pick<MachinePort, 'hostPort' | 'guestPort'>[];
}

/** Returns the name of a machine's relay among the processes of the host. `uid` is that of the machine. */
function relayName(uid: string): string {
  return `berth-port-relay-${uid}`;
}

/**
 * Returns a command line that opens the ports, and then runs `command` beside a relay. Without ports, it is `command` itself. The working directory
 * must be the machine's folder.
 */
export function withPortRelay(
  uid: string,
  command: [string, ...string[]],
  { hostAddress, ports }: RelayedPorts,
): [string, ...string[]] {
  const pairs = ports.map(({ hostPort, guestPort }) => `${hostPort}:${guestPort}`).join(',');
  const numbers = [CONNECTIONS, CONNECT_SECONDS, IDLE_SECONDS].map(String);
  const settings = [uid, hostAddress, pairs, ...numbers];
  return ports.length === 0 ? command : ['perl', '-e', PROGRAM, ...settings, ...command];
}

/**
 * Tells the relay of a machine the address of its guest. If there is none, the relay forgets the former one, because the DHCP server can give it
 * to another guest.
 */
export async function tellRelay(folder: string, address: string | undefined): Promise<void> {
  const path = join(folder, ADDRESS_FILE);
  if (address === undefined) {
    await rm(path, { force: true });
  } else if ((await undefinedIf(isMissing, readFile(path, 'latin1'))) !== address) {
    await writeWhole(path, address);
  }
}

/** Returns those of these machines whose relays live. */
export async function liveRelays(uids: readonly string[]): Promise<Set<string>> {
  const names = await findArguments(new Set(uids.map(relayName)));
  return new Set(uids.filter((uid) => names.has(relayName(uid))));
}

/** Waits until the relay of an ended machine has closed the ports, and kills it if it does not. */
export async function endRelay(uid: string, folder: string): Promise<void> {
  const end = async (relay: ProcessIdentity): Promise<void> => {
    if (!(await waitForExit(relay, END_MILLISECONDS))) {
      await killForCertain(relay);
    }
  };
  await Promise.all((await findAllByArgument(relayName(uid))).map(end));
  await rm(join(folder, ADDRESS_FILE), { force: true });
}
