package dev.phalanx.spark.ui;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.deploy.history.FsHistoryProvider;
import org.apache.spark.deploy.history.HistoryServer;
import org.apache.spark.deploy.history.HistoryServer$;

/** A real history server over a folder of event logs, which prints pages of it: {@code HistoryMain FOLDER PATH...}. */
public final class HistoryMain {
  private static final long DEADLINE_SECONDS = 40;

  private HistoryMain() {}

  public static void main(String[] args) throws Exception {
    for (String page : pages(args[0], null, List.of(args).subList(1, args.length))) {
      System.out.println(page);
    }
    System.exit(0);
  }

  /** What the server answers to each path, with the status in front; waits until it has read the logs. */
  static List<String> pages(String folder, String disk, List<String> paths) throws Exception {
    SparkConf conf = new SparkConf().set("spark.history.fs.logDirectory", "file:" + folder);
    if (disk != null) {
      conf.set("spark.history.store.path", disk);
    }
    FsHistoryProvider provider = new FsHistoryProvider(conf);
    HistoryServer server = new HistoryServer(conf, provider, HistoryServer$.MODULE$.createSecurityManager(conf), 0);
    server.bind();
    try {
      provider.start();
      HttpClient client = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.ALWAYS).build();
      List<String> found = new ArrayList<>();
      long until = System.nanoTime() + DEADLINE_SECONDS * 1_000_000_000L;
      for (String path : paths) {
        URI address = URI.create("http://127.0.0.1:" + server.boundPort() + path);
        while (found.isEmpty() && !fetched(client, address).startsWith("200") && System.nanoTime() < until) {
          Thread.sleep(100); // it reads the folder in a thread of its own
        }
        found.add(fetched(client, address));
      }
      return found;
    } finally {
      server.stop();
    }
  }

  private static String fetched(HttpClient client, URI address) throws IOException, InterruptedException {
    HttpRequest request = HttpRequest.newBuilder(address).build();
    HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
    return answer.statusCode() + " " + answer.body();
  }
}
