package dev.phalanx.spark;

import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** That Java can call all of the API is proved by this file's compiling. */
public final class JavaCaller {
  private JavaCaller() {}

  /** Rank 0's result and every rank's state. */
  public static List<String> train(String file) throws Exception {
    TrainingResult result = new TorchDistributor(2, false, false).run(file, "a", "b");
    List<String> lines = new ArrayList<>();
    lines.add(result.getResultJson());
    for (RankOutcome rank : result.getRanks()) {
      lines.add(rank.getRank() + " " + rank.getState());
    }
    for (Phase phase : result.getPhases()) {
      if (phase.getSeconds() < 0 || phase.getName() == null) {
        throw new AssertionError(phase);
      }
    }
    return lines;
  }

  /** How a failure looks. */
  public static String fail() {
    try {
      new TorchDistributor(1, false, false).runProgram(List.of("/bin/sh", "-c", "exit 3"));
      return "no failure";
    } catch (TrainingException failure) {
      return String.format(
          "%s %d %d %s %s",
          failure.getKind(),
          failure.getRank(),
          failure.getExitCode(),
          failure.getSignal(),
          failure.getLastLines());
    }
  }

  /** The other forms; compiled only. */
  static void others(TorchDistributor distributor) throws Exception {
    Run run =
        distributor
            .withMaxRestarts(3)
            .withRestartOn("signal", "hang")
            .withHangTimeout(Duration.ofMinutes(10))
            .withGrace(Duration.ofSeconds(5))
            .withWarm(false)
            .withLogs("dedup")
            .withLogs(0, 8)
            .withOptions(new Options().withEnv(Map.of("SEED", "7")).withLocalRanks("host"))
            .start("train.py", "--epochs=3");
    distributor.startModule("pkg.train");
    distributor.startProgram(List.of("/bin/true"));
    Report report = run.getReports().get(0);
    Double loss = report.getNumber("loss");
    System.out.println(run.getStatus() + report.getStep() + loss + run.logs(0) + run.isDone());
    System.out.println(run.stacks().getByRank().get(0) + run.getPhases() + run.getRanks());
    RankResult result = run.results(Duration.ofMinutes(1)).apply(0);
    byte[] bytes = result.getBytes();
    System.out.println(result.getJson() + result.getUnavailable() + result.getState() + bytes.length);
    try (InputStream stream = result.getStream()) {
      System.out.println(result.getSize() + stream.read());
    }
    System.out.println(run.result(Duration.ofMinutes(1)).getResults().get(0).getRank());
    run.cancel();
    run.cancel("enough");
    distributor.runModule("pkg.train");
    distributor.runModule("pkg.train", "--epochs=3");
    new TorchDistributor(4);
    BarrierRunner.version();
  }
}
