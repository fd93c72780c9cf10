package dev.phalanx.spark;

import dev.phalanx.spark.internal.SparkFit;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;
import org.slf4j.LoggerFactory;

/**
 * Phalanx as a plugin of Spark: configuration checked at start, executors that are ready, metrics.
 *
 * <p>Everything works without it, but the first training starts more slowly: only then do executors load the native
 * library and unpack Phalanx's Python files.
 *
 * <pre>{@code
 * spark-submit --jars phalanx-spark_2.13-VERSION.jar --conf spark.plugins=dev.phalanx.spark.PhalanxPlugin ...
 * }</pre>
 *
 * <p>JAR-1 (checked-at-start): a bad `spark.phalanx.*` value ends the application at its start, in a sentence. An
 * unknown key causes a warning.
 *
 * <p>JAR-2 (ranks-first): when an executor shuts down, its ranks are gone before its JVM is.
 *
 * <p>JAR-3 (harmless): on a Spark, a Scala or a Java on which the jar can't run, one sentence of the log says so,
 * and the application goes on without the plugin.
 *
 * <p>JAR-4 (connect-commands): a Spark Connect server of the application, from Spark 4.0 on, knows Phalanx's
 * commands, beside those that the user's settings name.
 */
public class PhalanxPlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    return (DriverPlugin) half("dev.phalanx.spark.plugin.PhalanxDriverPlugin");
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return (ExecutorPlugin) half("dev.phalanx.spark.plugin.PhalanxExecutorPlugin");
  }

  /** One half by its name, since a JVM that is too old can't load it; null where it can't be had. */
  private static Object half(String name) {
    String problem = SparkFit.problem();
    if (problem == null) {
      try {
        return Class.forName(name).getDeclaredConstructor().newInstance();
      } catch (ReflectiveOperationException | LinkageError thrown) {
        problem = SparkFit.unlinked(thrown);
      }
    }
    LoggerFactory.getLogger("dev.phalanx").warn(problem + "; the application goes on without Phalanx's plugin");
    return null;
  }
}
