// What both peers share: how an operation is timed, and what is printed. As rust/collective/benches/all_reduce.rs does it:
// a barrier before each call, the slowest rank counts; then as many calls back to back, with their processor time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mpi.h>
#include <vector>

inline double reduced(double mine, MPI_Op op) {
  double all;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
  return all;
}

inline double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

template <class Operation> void measure(size_t bytes, double seconds, Operation operation) {
  double start = MPI_Wtime();
  int warm = 0;
  while (reduced(MPI_Wtime() - start, MPI_MAX) < 0.15) {
    for (int i = 0; i < 3; i++, warm++) operation();
  }
  double each = reduced((MPI_Wtime() - start) / warm, MPI_MAX);
  int calls = std::min(2000.0, std::max(5.0, seconds / each));
  std::vector<double> slowest;
  for (int i = 0; i < calls; i++) {
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    operation();
    slowest.push_back(reduced(MPI_Wtime() - start, MPI_MAX) * 1e6);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  start = MPI_Wtime();
  double before = processor_seconds();
  for (int i = 0; i < calls; i++) operation();
  double looped = (MPI_Wtime() - start) / calls, used = (processor_seconds() - before) / calls;
  looped = reduced(looped, MPI_MAX) * 1e6;
  used = reduced(used, MPI_SUM) * 1e6;
  std::sort(slowest.begin(), slowest.end());
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    printf("{\"bytes\": %zu, \"latency\": %.9g, \"loop\": %.9g, \"cpu\": %.9g}\n", bytes, slowest[calls / 2], looped, used);
    fflush(stdout);
  }
}

// Calls `run(buffer, bytes)` for each size in the arguments: DTYPE SECONDS BYTES...
template <class Run> void each_size(int count, char **words, Run run) {
  for (int i = 3; i < count; i++) {
    size_t bytes = strtoull(words[i], nullptr, 0);
    void *buffer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::fill_n((char *)buffer, bytes, 0);  // zeros stay what they are, and take as long as other numbers
    measure(bytes, atof(words[2]), [&] { run(buffer, bytes); });
    free(buffer);
  }
}
