// Times plain MPI collectives, for scripts/bench-mpi: the bar that HetSeq's all-reduce over the same library is measured against.
// Prints one JSON object per size and operation. Every rank fills, reduces and times like `hetseq bench comm`.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: plain-allreduce ROUNDS MEGABYTES...\n");
    return 2;
  }
  int provided, rank, world, rounds = atoi(argv[1]);
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (int at = 2; at < argc; at++) {
    int floats = (int)(atof(argv[at]) * 1e6 / 4);
    float *data = malloc(4L * floats), *sum = malloc(4L * floats);
    int *counts = malloc(world * sizeof(int)), *starts = malloc(world * sizeof(int));
    for (int peer = 0; peer < world; peer++) {
      starts[peer] = (int)((long)floats * peer / world);
      counts[peer] = (int)((long)floats * (peer + 1) / world) - starts[peer];
    }
    double *took = malloc(rounds * sizeof(double));
    const char *names[] = {"MPI_Allreduce", "MPI_Reduce_scatter + MPI_Allgatherv"};
    for (int operation = 0; operation < 2; operation++) {
      for (int round = 0; round <= rounds; round++) {
        for (int i = 0; i < floats; i++) data[i] = (float)((rank + 1 + round % 8) * (i % 7 + 1));
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        if (operation == 0) {
          MPI_Allreduce(data, sum, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        } else {
          MPI_Reduce_scatter(data, sum + starts[rank], counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
          MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, sum, counts, starts, MPI_FLOAT, MPI_COMM_WORLD);
        }
        // As in `hetseq bench comm`, the first round warms up.
        if (round > 0) took[round - 1] = MPI_Wtime() - start;
        for (int i = 0; i < floats; i++) {
          long factor = 0;
          for (int peer = 0; peer < world; peer++) factor += peer + 1 + round % 8;
          if (sum[i] != (float)(factor * (i % 7 + 1))) {
            fprintf(stderr, "%s: wrong sum at %d\n", names[operation], i);
            MPI_Abort(MPI_COMM_WORLD, 1);
          }
        }
      }
      qsort(took, rounds, sizeof(double), by_value);
      if (rank == 0) {
        printf("{\"operation\": \"%s\", \"world\": %d, \"bytes\": %ld, \"median_ms\": %.4f, \"best_ms\": %.4f}\n", names[operation],
               world, 4L * floats, 1e3 * took[rounds / 2], 1e3 * took[0]);
        fflush(stdout);
      }
    }
    free(data), free(sum), free(counts), free(starts), free(took);
  }
  MPI_Finalize();
  return 0;
}
